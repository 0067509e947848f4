"""Published claims, judged on the user's own results: one module per paper."""

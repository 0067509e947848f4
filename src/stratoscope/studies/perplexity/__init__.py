"""A decoder judged by perplexity at every depth."""

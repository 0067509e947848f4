"""A smaller decoder, judged by perplexity."""

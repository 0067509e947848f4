"""Text as a model takes it: tokens, rows and examples."""

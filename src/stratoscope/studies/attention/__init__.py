"""Compare the attention heads of models."""

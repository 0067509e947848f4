"""Training with transformers' Trainer."""

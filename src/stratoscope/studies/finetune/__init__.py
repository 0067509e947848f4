"""Fine-tuned checkpoints."""

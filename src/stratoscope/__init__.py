"""See how fine-tuning reshapes a Transformer, layer by layer."""

"""What checkpoints say of their weights, tensor by tensor, without a model."""

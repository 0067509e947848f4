"""Compare layers of models."""

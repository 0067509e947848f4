"""A smaller checkpoint."""

"""Similarity measures between layers: one file a measure, one table."""

"""Similarity measures between layers: those of covariances in one file, others in one each, and one table."""

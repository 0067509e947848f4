"""Measures of covariances."""

"""Measures of kernels between rows."""

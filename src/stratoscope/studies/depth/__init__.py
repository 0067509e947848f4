"""A model judged at every depth."""

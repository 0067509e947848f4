"""Models: families, loading, the rows that are compared, and the extraction of their activations."""

"""Maps between models: layer by layer, read by another model's head, and against a known bijection."""

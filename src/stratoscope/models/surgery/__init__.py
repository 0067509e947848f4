"""Blocks taken out of a model, and the checks that what is left is right."""

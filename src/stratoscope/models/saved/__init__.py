"""Activations that somebody else saved, read and written."""

"""Heads: how a model's own reads a layer, and how one is fitted."""

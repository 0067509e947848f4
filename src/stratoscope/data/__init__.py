"""Corpora: sentences with a stable identity, read from files or the hub, and the demo's real weights and text."""

"""The front door: two models, what changed, and what could be cut."""

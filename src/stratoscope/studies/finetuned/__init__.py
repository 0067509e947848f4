"""A base model and what was tuned from it, on one page."""

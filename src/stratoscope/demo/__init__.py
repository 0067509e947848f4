"""The demo: what it fetches and what it runs."""

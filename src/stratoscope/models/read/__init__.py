"""Run a model over text and read what is asked for."""

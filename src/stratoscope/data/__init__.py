"""Corpora, tagged words and tasks, read from files or the hub; metrics and baselines of a task."""

"""Tasks: their table, their files and their rows."""

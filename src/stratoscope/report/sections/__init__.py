"""What each kind of result shows: one module per kind, named in its row of `runs.kinds`."""

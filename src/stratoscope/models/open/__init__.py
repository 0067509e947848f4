"""Open a checkpoint: find it, guard it, load it with the head that is wanted."""

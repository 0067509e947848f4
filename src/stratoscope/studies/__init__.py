"""Studies: one file per question a user asks."""

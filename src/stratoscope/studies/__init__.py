"""Studies: one file or one package per question a user asks."""

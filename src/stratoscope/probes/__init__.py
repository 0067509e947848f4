"""What a linear probe finds in rows: pure work on features and tags."""

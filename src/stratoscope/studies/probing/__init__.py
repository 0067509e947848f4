"""What layers and neurons know of a property of words."""

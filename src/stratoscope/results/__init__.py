"""What analyses give back: frozen nouns that are saved and loaded without any model."""

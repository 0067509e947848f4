"""How the weights of two models differ."""

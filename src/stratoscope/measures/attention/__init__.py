"""Attention of heads compared: sums over sentences for all pairs of heads, streamed."""

"""Figures, words and the page made from a result; knows results, never models."""

"""Figures, pages and tables of results; draws what is there, computes no score and judges no claim."""

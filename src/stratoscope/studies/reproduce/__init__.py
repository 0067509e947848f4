"""Reproduce a figure or a table of a paper."""

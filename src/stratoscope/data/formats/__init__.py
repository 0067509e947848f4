"""Readers of one file format each."""

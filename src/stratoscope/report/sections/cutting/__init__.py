"""Sections of the pages about leaving out blocks."""

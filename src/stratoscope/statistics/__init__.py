"""Streaming sums over rows: everything a linear measure needs, added up chunk by chunk."""

"""Compute: deltas, the outer step, the global values."""

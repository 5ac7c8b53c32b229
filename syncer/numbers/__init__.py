"""Compute: deltas, the outer step, the global values. They know no link, no file and no brain."""

"""Process death, for real: a syncer and islands as processes, faults at moments that are seen, and what then holds.

`python -m tests.e2e.chaos --scenarios N --seed S --json` runs N scenarios; each is data that follows from its seed.
"""

"""Simulated worlds: the real brains under a virtual clock."""

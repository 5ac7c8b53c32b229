"""Simulated worlds: the real brains of islands and syncer under a virtual clock, for tests and for planning.

The one package that knows both sides, because a world needs both: of each it takes the brain and its events, and
neither imports it. Nothing here opens a socket, reads a clock or draws a number that does not come from a seed.
"""

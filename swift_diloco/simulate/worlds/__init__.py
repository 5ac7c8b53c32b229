"""Whole runs of both real brains under faults and a virtual clock, checked at every step. Know no fleets."""

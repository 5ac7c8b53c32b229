"""Simulated worlds, the checkers that judge them, and the planner."""

"""Placeholder of the start-up hook."""

"""Benchmarks: run by hand or by a timer, each prints one line of JSON beside the ceiling measured in the same run."""

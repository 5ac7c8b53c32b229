"""Tests of the quickstart."""

"""What the quickstart trains on: a corpus and a small model."""

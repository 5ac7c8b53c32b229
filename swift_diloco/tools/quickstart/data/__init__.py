"""What the quickstart trains on: a corpus and a small model. Knows no job and no result."""

"""The processes of the quickstart: their commands, their lives, their progress. Knows no run."""

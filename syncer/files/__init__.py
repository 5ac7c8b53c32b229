"""Keep: checkpoints, the tape, the status file."""

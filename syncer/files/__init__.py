"""Keep: checkpoints, the tape, the status file. They decide nothing."""

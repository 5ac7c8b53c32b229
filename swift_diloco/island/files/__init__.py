"""Keep: the sync record beside a trainer checkpoint."""

"""Real processes: a syncer and islands, fake or real, over loopback."""

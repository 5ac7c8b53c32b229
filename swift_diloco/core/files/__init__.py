"""Files that both processes read or write: the run folder, keys, checkpoints. Knows no settings and no socket."""

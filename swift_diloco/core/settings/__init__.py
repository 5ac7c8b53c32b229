"""The settings of both processes: schemas, presets, and where values come from. No arrays, no run's files."""

"""What people run, one folder per command, each with a `cli`. A tool knows no other tool, and no simulated world."""

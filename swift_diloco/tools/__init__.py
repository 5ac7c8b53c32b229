"""What people run, one folder per command. A tool knows no other tool."""

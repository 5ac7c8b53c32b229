"""Islands in real trainers, and what their callbacks share. Only they, `launch` and `cpu` know a trainer."""

"""Islands in real trainers, and what their callbacks share. Only these, `launch` and `cpu` know ms-swift."""

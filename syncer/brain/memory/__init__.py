"""What the rules remember, and plain questions to it. Memory knows no rule."""

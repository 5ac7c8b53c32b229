"""Drawing: plots as SVG, and the look of a page. Knows nothing of runs."""

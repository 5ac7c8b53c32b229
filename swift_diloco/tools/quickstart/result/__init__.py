"""What came of it: losses, figures, plots, the page."""

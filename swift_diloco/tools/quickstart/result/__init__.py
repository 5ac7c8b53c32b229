"""What came of it: losses, figures, plots, the page. Knows no job."""

"""What both processes share: formats, layout, numbers, settings, files and stories. Knows neither of them."""

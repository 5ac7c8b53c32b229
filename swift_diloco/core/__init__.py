"""What both processes share: formats, layout, numbers, settings and files. Knows neither of them."""

"""Which rows a sample holds."""

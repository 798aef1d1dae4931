"""Tree search on flat arrays, many trees at once."""

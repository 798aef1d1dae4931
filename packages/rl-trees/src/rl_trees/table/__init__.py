"""Open-addressing tables of exact keys."""

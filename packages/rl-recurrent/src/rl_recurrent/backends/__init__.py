"""Ways to compute one layer in one direction over rows; all compute the same."""

"""N-step returns."""

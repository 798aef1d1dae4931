"""Whether and what a buffer may write."""

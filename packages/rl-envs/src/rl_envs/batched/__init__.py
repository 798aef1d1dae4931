"""Several environments as one, in this process and in others."""

"""Where the rows of a buffer live."""

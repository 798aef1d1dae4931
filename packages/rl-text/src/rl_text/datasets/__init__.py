"""Data sets of text: examples read, tokenised once, kept in mapped files, and drawn."""

"""Priorities of rows: the tree that draws them, and what is known of each row."""

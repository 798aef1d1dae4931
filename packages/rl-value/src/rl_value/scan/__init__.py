"""First-order linear recurrences along time."""

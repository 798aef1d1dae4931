"""The structure of the caller's data, and their flat rows."""

"""Buffers in actors of Ray, for programs on several machines."""

"""Collectors with worker processes."""

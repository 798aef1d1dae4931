"""Transforms that read earlier rows."""

"""Transforms on numpy rows."""

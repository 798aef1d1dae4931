"""Markers and the segments derived from them."""

"""Segments padded to one length."""

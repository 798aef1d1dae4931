"""Rows whose observations are stored once."""

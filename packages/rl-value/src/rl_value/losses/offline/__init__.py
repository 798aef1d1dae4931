"""Losses from stored steps alone."""

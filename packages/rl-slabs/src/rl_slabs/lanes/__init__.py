"""Lanes: one writer each."""

"""Actors and critics."""

"""Exploration."""

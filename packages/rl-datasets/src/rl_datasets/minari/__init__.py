"""Datasets of the Minari project."""

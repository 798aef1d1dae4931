"""Transforms of samples."""

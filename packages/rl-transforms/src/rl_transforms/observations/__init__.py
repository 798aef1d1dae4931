"""Transforms of observations and images."""

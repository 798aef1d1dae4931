"""Environments with transforms."""

"""Gymnasium's environments and vectors."""

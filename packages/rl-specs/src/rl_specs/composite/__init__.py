"""Specs of tensordicts."""

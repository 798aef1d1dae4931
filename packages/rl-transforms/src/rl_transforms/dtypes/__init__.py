"""Transforms of dtype and device."""

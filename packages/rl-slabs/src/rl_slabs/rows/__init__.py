"""Rows: packed leaves, written and gathered."""

"""Rows of tensors in private, shared or mapped memory, written by many processes."""

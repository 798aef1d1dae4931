"""Buffers on disk: written beside and swapped in, checked when read."""

"""Transforms of text in tensordicts: tokens, and hashes."""

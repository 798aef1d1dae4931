"""Tokenizers: one of bytes, the checks that others need, and texts as tensordicts."""

"""Splitting, joining and TED codecs."""

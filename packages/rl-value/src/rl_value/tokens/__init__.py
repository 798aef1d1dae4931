"""Losses and advantages of language models: flat tokens, sequences, groups of one prompt."""

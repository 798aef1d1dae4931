"""Datasets in the form of RLDS: one record for each episode."""

"""Collectors whose workers are actors of Ray, on one machine or many."""

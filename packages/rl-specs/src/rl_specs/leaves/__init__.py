"""Specs of one tensor."""

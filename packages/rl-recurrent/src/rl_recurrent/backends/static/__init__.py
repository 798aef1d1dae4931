"""Unrolling with static shapes, for compiled code."""

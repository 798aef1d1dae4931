"""Forests of rollouts, and trees as views of them."""

"""Datasets of the LeRobot project."""

"""Rows of a dump by trajectory, each observation once: made and read back piece by piece."""

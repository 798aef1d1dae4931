"""Gymnasium's spaces as specs, and values between the two."""

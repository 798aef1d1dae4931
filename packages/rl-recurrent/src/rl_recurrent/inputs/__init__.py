"""Markers and shapes of recurrent inputs, checked."""

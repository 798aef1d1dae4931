"""Trackers, primers, resets and ends of episodes."""

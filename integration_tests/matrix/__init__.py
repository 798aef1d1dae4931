"""Every part beside every other: what is chosen, and the same numbers step by step."""

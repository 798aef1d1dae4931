"""Every part with every other: the parts chosen, and the same numbers step by step."""

"""The buffer: its parts, batches made of draws, prefetching."""

"""Several buffers as one: samples of all or some of them, and writes to each."""

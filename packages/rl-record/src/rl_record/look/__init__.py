"""One page that shows the rows of a batch, a buffer or a dump."""

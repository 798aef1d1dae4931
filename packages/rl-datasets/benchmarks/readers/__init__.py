"""Small files of each format, and the peer's readers of them."""

"""How the rows of a storage are kept on disk."""

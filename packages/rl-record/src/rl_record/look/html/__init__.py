"""The page: from numbers to HTML."""

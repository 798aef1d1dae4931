"""Arguments of collectors, checked."""

"""Videos as files."""

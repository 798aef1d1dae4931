"""Episodes that are read ahead into a ring, for datasets that do not fit."""

"""Errors of two kinds: what this family and other libraries raise for one mistake."""

from __future__ import annotations


class UnfitValue(ValueError, RuntimeError):
    """A value that does not fit; code written for other libraries catches a `RuntimeError`.

    Example:
        >>> issubclass(UnfitValue, ValueError), issubclass(UnfitValue, RuntimeError)
        (True, True)
    """


class UnknownName(KeyError, ValueError):
    """A name that there is not; code written for other libraries catches a `ValueError`.

    Example:
        >>> issubclass(UnknownName, KeyError), issubclass(UnknownName, ValueError)
        (True, True)
    """

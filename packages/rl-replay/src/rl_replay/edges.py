"""Errors of torch, numpy and Python at the public edges of a buffer: they show the arguments."""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable
from typing import Any

from tensordict import TensorDictBase

from rl_tensordict import NestedKey, add_notes, as_key, leaves, note_call
from rl_tensordict.arguments import shown

FOREIGN = (TypeError, ValueError, IndexError, AttributeError, KeyError, RuntimeError)


def _note_method(
    error: Exception, method: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    note_given(error, f"{type(args[0]).__name__}.{method.__name__}", *args[1:], *options.values())


edge = add_notes(_note_method, FOREIGN)
"""Decorates a method so that its errors name its arguments, unless they are our own messages."""


def note_given(error: Exception, call: str, *given: object) -> None:
    """Adds what a call was given to an error that we did not raise; names leaves without data."""
    if absent := [key for value in given for key in _without_data(value)]:
        error.add_note(f"{call} was given {absent} on the device 'meta': give them data.")
    found = error.__traceback__
    while found is not None and found.tb_next is not None:
        found = found.tb_next
    if found is None:
        return
    ours = str(found.tb_frame.f_globals.get("__name__", "")).startswith("rl_")
    line = linecache.getline(found.tb_frame.f_code.co_filename, found.tb_lineno)
    if not (ours and "raise" in line):
        note_call(error, call, given, advice=f"See help({call}).")


def _without_data(value: object) -> list[NestedKey]:
    if not isinstance(value, TensorDictBase):
        return []
    return [as_key(key) for key, leaf in leaves(value) if getattr(leaf, "is_meta", False)]


def folder_name(path: object) -> str:
    """The path of a folder as a string."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path is the name of a folder, got {shown(path)}: give a str or Path.")
    name = os.fspath(path)
    if not isinstance(name, str) or not name or "\0" in name:
        raise TypeError(f"path is the name of a folder, got {name!r}: give a str or Path.")
    return name

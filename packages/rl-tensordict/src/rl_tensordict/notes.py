"""Notes on errors of torch, tensordict and networks: which call raised them, and its arguments.

A call that succeeds pays nothing: arguments are described after a failure only. Packages bind what
they say of a call, by `add_notes(describe)`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from tensordict import TensorDictBase
from torch import Tensor

from rl_tensordict.arguments import check_type, shown

Method = TypeVar("Method", bound=Callable[..., Any])
Note = Callable[[Exception, Callable[..., Any], tuple[Any, ...], dict[str, Any]], None]
"""Adds notes to the error of a call: takes the error, the function, arguments and keywords."""

# advice for an error raised inside of a network or a distribution
COMPARE = "Compare their shapes and dtypes with the inputs of the network."


def add_notes(
    note: Note, errors: type[Exception] | tuple[type[Exception], ...] = Exception
) -> Callable[[Method], Method]:
    """Decorate a function or method so that its errors get notes on the call.

    Args:
        note: adds the notes, of `errors` alone; it may raise another error in their place.
        errors: the classes of errors that get some.

    Returns:
        The decorator.

    Example:
        >>> @add_notes(lambda error, call, given, named: error.add_note(f"{call.__name__}{given}"))
        ... def inverse(x):
        ...     return 1 / x
        >>> try:
        ...     inverse(0)
        ... except ZeroDivisionError as error:
        ...     error.__notes__
        ['inverse(0,)']
    """

    def decorate(function: Method) -> Method:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except errors as error:
                note(error, function, args, kwargs)
                raise

        return cast("Method", call)

    return decorate


def note_call(
    error: Exception,
    what: str,
    arguments: Iterable[Any],
    keys: Iterable[Any] = (),
    advice: str = COMPARE,
) -> None:
    """Add a note on the call that raised an error, unless a call inside of it has added one.

    Args:
        error: what the call raised.
        what: the call.
        arguments: its arguments.
        keys: names or keys of the arguments, as far as they have some.
        advice: a sentence.

    Raises:
        TypeError: the error is no exception, or arguments or keys are not iterable.

    Example:
        >>> error = ValueError("too few")
        >>> note_call(error, "Actor.step", [3], ["observation"], "See help(Actor).")
        >>> note_call(error, "Actor", [3])
        >>> error.__notes__
        ["Actor.step was given 'observation' 3. See help(Actor)."]
    """
    check_type("error", error, BaseException, "an exception")
    # sequences of tensordict add notes of their own, which name no argument
    if any(" was given " in text for text in getattr(error, "__notes__", ())):
        return
    names = [f"{key!r} " for key in _listed("keys", keys)]
    values = _listed("arguments", arguments)
    names += [""] * (len(values) - len(names))
    listed = ", ".join(name + _described(v) for name, v in zip(names, values, strict=False))
    if names and not values:
        read = ", ".join(name.strip() for name in names)
        listed = f"nothing; it reads {read}"
        advice = "Pass a tensordict that holds them, or one tensor for each."
    error.add_note(f"{what} was given {listed or 'nothing'}. {advice}")


def _note_arguments(
    error: Exception, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    name = function.__name__
    if function.__code__.co_varnames[:1] == ("self",):
        owner, args = type(args[0]).__name__, args[1:]
        name = owner if name == "__init__" else f"{owner}.{name}"
    unnamed = [f"argument {position + 1}" for position in range(len(args))]
    advice = f"See help({name}) for what each may be."
    note_call(error, name, [*args, *kwargs.values()], [*unnamed, *kwargs], advice)


note_errors = add_notes(_note_arguments)
"""Decorate a function or method so that errors carry its arguments; for rare calls."""


def _listed(name: str, values: Iterable[Any]) -> list[Any]:
    try:
        return list(values)
    except (TypeError, RuntimeError):  # tensors without dimensions, sparse ones
        msg = f"{name}: expected a list, got {shown(values)}."
        raise TypeError(msg) from None


def _described(value: Any) -> str:
    """Describe an argument in a few words: dtype and shape, keys, or type."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, TensorDictBase):
        return f"a tensordict {list(value.batch_size)} of {list(value.keys(True, True))}"
    if isinstance(value, type):
        return f"a class {value.__name__}"
    plain = value is None or isinstance(value, str | int | float)
    return repr(value) if plain else f"a {type(value).__name__}"

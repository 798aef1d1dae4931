"""Exceptions sent from a worker to its parent."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

from rl_workers.errors import WorkerError, WorkerTraceback


@dataclass(frozen=True)
class Failure:
    """An exception as it is sent: its texts, and the parts to rebuild it from.

    Example:
        >>> raise pickle.loads(pickle.dumps(Failure.of(KeyError("a")))).revive("worker 1")
        Traceback (most recent call last):
        KeyError: 'a'
    """

    # the exception is rebuilt from its parts once before it is sent, as a test. Name and traceback
    # arrive also where it cannot be pickled or rebuilt

    module: str  # of its type
    name: str  # the qualified name of its type
    text: str  # its message
    traceback: str  # with all causes, as Python prints it
    parts: bytes | None  # pickled constructor, arguments and attributes; None: not to be rebuilt

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception; this never raises."""
        kind = type(error)
        return cls(
            kind.__module__,
            kind.__qualname__,
            _text(error),
            "".join(traceback.format_exception(error)),
            _parts(error),
        )

    def revive(self, who: str) -> BaseException:
        """Rebuild the exception; a `WorkerError` with its name where that is not possible."""
        error = self._rebuild()
        if error is None:
            error = WorkerError(f"{who} raised {self.module}.{self.name}: {self.text}")
        error.__cause__ = WorkerTraceback(who, self.traceback)
        return error

    def _rebuild(self) -> BaseException | None:
        if self.parts is None:
            return None
        try:
            make, args, attributes = pickle.loads(self.parts)
            return _construct(make, args, attributes, self.text)
        except Exception:  # whatever a foreign constructor does, the failure itself must arrive
            return None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its message cannot be shown)"


def _parts(error: BaseException) -> bytes | None:
    try:
        reduced: Any = error.__reduce__()
        make, args = reduced[:2]
        attributes = {name: value for name, value in vars(error).items() if _can_travel(value)}
        if type(_construct(make, args, attributes, str(error))) is not type(error):
            return None
        return pickle.dumps((make, args, attributes))
    except Exception:
        return None


def _construct(make: Any, args: Any, attributes: Any, text: str) -> BaseException | None:
    """Rebuild an exception; None if the result differs from the original."""
    error = make(*args)
    if not isinstance(error, BaseException):
        return None
    vars(error).update(attributes)
    # a constructor that formats its message from its arguments would format the message again
    return error if str(error) == text else None


def _can_travel(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True

"""An exception on its way from one process to another."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

from rl_workers.errors import WorkerError, WorkerTraceback


@dataclass(frozen=True)
class Failure:
    """What is left of an exception when it leaves its process: texts, and what it was made of."""

    # It travels as what it can be made again from, tried out at once, alongside its name and its
    # traceback: these arrive also where the exception cannot be pickled, or made again.

    module: str  # Where its type lives
    name: str  # The qualified name of its type
    text: str  # Its message
    traceback: str  # Its traceback with all causes, as Python prints it
    # What makes it again, with which arguments and attributes; pickled, or None
    parts: bytes | None

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """What can be said and carried of an exception; this never raises."""
        kind = type(error)
        return cls(
            kind.__module__,
            kind.__qualname__,
            _text(error),
            "".join(traceback.format_exception(error)),
            _parts(error),
        )

    def revive(self, who: str) -> BaseException:
        """The exception to raise here: of the same type where it can be made again."""
        error = self._again()
        if error is None:
            error = WorkerError(f"{who} raised {self.module}.{self.name}: {self.text}")
        error.__cause__ = WorkerTraceback(who, self.traceback)
        return error

    def _again(self) -> BaseException | None:
        if self.parts is None:
            return None
        try:
            make, args, attributes = pickle.loads(self.parts)
            return _remake(make, args, attributes, self.text)
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
        if type(_remake(make, args, attributes, str(error))) is not type(error):
            return None
        return pickle.dumps((make, args, attributes))
    except Exception:
        return None


def _remake(make: Any, args: Any, attributes: Any, text: str) -> BaseException | None:
    """The exception made again, or None where that gives another one."""
    error = make(*args)
    if not isinstance(error, BaseException):
        return None
    vars(error).update(attributes)
    # a constructor that builds a message from its arguments says something else the second time
    return error if str(error) == text else None


def _can_travel(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True

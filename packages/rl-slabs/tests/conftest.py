"""Processes that tests start, and the rows that they write."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rl_slabs import RowSchema

TIMEOUT_S = 20


class Child:
    """A forked process and the test's end of a pipe to it; every wait is bounded."""

    def __init__(self, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=function, args=(theirs, *args), daemon=True)
        with warnings.catch_warnings():
            # these children run a few small operations, no thread of torch's
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def receive(self) -> Any:
        assert self.pipe.poll(TIMEOUT_S), "the child said nothing"
        return self.pipe.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@pytest.fixture
def forked() -> Iterator[Callable[..., Child]]:
    """Starts `function(pipe, *args)` in a forked process, which is killed after the test."""
    children: list[Child] = []

    def start(function: Callable[[Connection], None], *args: Any) -> Child:
        children.append(Child(function, args))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.pipe.close()


@pytest.fixture
def schema() -> RowSchema:
    """Three leaves that all hold a row's number in the tests of lanes; one has an own array."""
    return RowSchema(
        {
            "number": (torch.int64, ()),
            ("next", "observation"): (torch.float32, (3,)),
            "frame": (torch.int64, (2, 67)),
        }
    )


@pytest.fixture
def numbered() -> Callable[[Any], TensorDict]:
    """Rows of `schema` of which every element is the row's number."""

    def rows(numbers: Any) -> TensorDict:
        column = torch.as_tensor(list(numbers))
        return TensorDict(
            {
                "number": column,
                "next": {"observation": column[:, None].float().expand(-1, 3)},
                "frame": column[:, None, None].expand(-1, 2, 67),
            },
            batch_size=[len(column)],
        )

    return rows

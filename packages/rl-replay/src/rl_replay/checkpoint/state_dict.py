"""Everything that the next samples of a buffer depend on, and back: all of it or nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from rl_replay.storages import ListStorage, TensorStorage

_PARTS = ("storage", "sampler", "writer")
_KEYS = frozenset({*_PARTS, "kinds", "dim_extend", "transform", "batch_size", "rng"})


def state_of(buffer: Any) -> dict[str, Any]:
    """A buffer's rows, sampler, writer, transforms, batch size and generator."""
    beside = state_beside(buffer)  # first: it takes back what was drawn ahead
    return beside | {
        "storage": buffer._storage.state_dict(),
        "kinds": {name: type(getattr(buffer, f"_{name}")).__name__ for name in _PARTS[1:]},
        "dim_extend": buffer._dim_extend,
    }


def state_beside(buffer: Any) -> dict[str, Any]:
    """The state of everything alongside the rows, as `stand` takes it."""
    buffer._rewind()
    return {
        "sampler": buffer._sampler.state_dict(),
        "writer": buffer._writer.state_dict(),
        "transform": dict(buffer._transform.state_dict()),
        "batch_size": buffer._batch_size,
        "rng": buffer._rng(),
    }


def load_state(buffer: Any, state: Mapping[str, Any]) -> None:
    """Stand as another buffer did."""
    if not isinstance(state, Mapping):
        raise ValueError(
            f"this is no state of a buffer: {type(state).__name__}. Give a state_dict()."
        )
    if missing := sorted(_KEYS - set(state)):
        raise ValueError(f"this is no state of a buffer: it lacks {missing}. Give a state_dict().")
    for name, kind in state["kinds"].items():
        require_same_kind("the state", name, kind, getattr(buffer, f"_{name}"))
    _require_same_rows(buffer, state)
    rows = state["storage"]
    stand(
        buffer,
        state,
        lambda: buffer._storage.load_state_dict(rows),
        (rows["capacity"], len(rows["first"])) if "first" in rows else None,
    )


def stand(
    buffer: Any,
    state: Mapping[str, Any],
    load_rows: Callable[[], None],
    size: tuple[int, int] | None,
) -> None:
    """Take over what is alongside the rows, then the rows; where either fails, nothing changes."""
    # In a storage of another size rows and trajectories are numbered anew, so an epoch begins anew.
    former = copy.deepcopy(state_beside(buffer))
    if state["batch_size"] is None:  # one that was never chosen replaces no choice
        state = {**state, "batch_size": buffer._batch_size}
    generator = buffer._generator
    try:
        _put(buffer, state)
        load_rows()
        if size not in (None, size_of(buffer._storage)):
            buffer._sampler.reset()
    except BaseException:
        try:
            buffer._generator = buffer._sampler.generator = generator
            _put(buffer, former)
        except BaseException:
            buffer._sampler.reset()  # rather than draw by the state of other rows
            raise
        raise


def size_of(storage: Any) -> tuple[int, int]:
    """How many rows a storage holds, and in how many lanes."""
    return storage.max_size, len(storage.ring.window().first)


def require_same_kind(
    source: object, name: str, kind: str, part: object, otherwise: str = ""
) -> None:
    """Nothing where a part of a buffer is of the kind that is to be loaded."""
    if kind != type(part).__name__:
        raise ValueError(
            f"{source} is of a buffer with a {kind}, this one has a {type(part).__name__}: make it "
            f"with the same {name}{otherwise}."
        )


def _put(buffer: Any, state: Mapping[str, Any]) -> None:
    try:
        buffer._transform.load_state_dict(state["transform"])
    except RuntimeError as error:
        raise ValueError(
            f"the buffer had other transforms than this one: {error} Make it with the same ones."
        ) from error
    buffer._sampler.load_state_dict(state["sampler"])
    buffer._writer.load_state_dict(state["writer"])
    buffer._batch_size = state["batch_size"]
    if state["rng"] is not None:
        buffer._generator = buffer._generator or torch.Generator()
        buffer._generator.set_state(state["rng"])
        buffer._sampler.generator = buffer._generator


def _require_same_rows(buffer: Any, state: Mapping[str, Any]) -> None:
    storage, rows = buffer._storage, state["storage"]
    for kind, key in ((ListStorage, "items"), (TensorStorage, "rows")):
        if isinstance(storage, kind) and key not in rows:
            raise ValueError(
                f"the state is not of a {kind.__name__}, as this buffer's {type(storage).__name__} "
                "is one: make it with a storage of the same kind."
            )
    columns = rows.get("columns")
    if columns is None or not isinstance(storage, TensorStorage):
        return
    if (1 + len(columns), state["dim_extend"]) != (storage.ndim, buffer._dim_extend):
        raise ValueError(
            f"the state is of a storage of {1 + len(columns)} dimensions that grows along "
            f"dimension {state['dim_extend']}, this one has {storage.ndim} and grows along "
            f"{buffer._dim_extend}: make one of the same shape."
        )

"""Rows of a batch are linked by a compiled loop as by numpy, whatever their layout."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_replay import LazyTensorStorage
from rl_replay.lossless import writer

NAN = float("nan")
VALUES = torch.tensor([0.0, -0.0, NAN, 1.0])
KINDS = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.float16, torch.bool)


def runs(generator: np.random.Generator, count: int, environments: int, odds: float) -> TensorDict:
    """Steps of some environments in turn, of few values, of which some contradict the markers."""
    width, kind = int(generator.integers(0, 4)), KINDS[generator.integers(len(KINDS))]

    def observe() -> torch.Tensor:
        found = VALUES[torch.from_numpy(generator.integers(4, size=(count, width)))]
        return found.nan_to_num().to(kind) if kind not in KINDS[:2] else found.to(kind)

    seen, after, wide = observe(), observe(), observe()
    keep = torch.from_numpy(generator.random(count) < odds)
    for row in range(environments, count):
        if keep[row]:
            seen[row] = after[row - environments]
    flags = {
        name: torch.from_numpy(generator.random((count, 1)) < 0.05)
        for name in ("done", "terminated", "truncated")
    }
    turn = torch.arange(count)
    collector = {
        "traj_ids": turn % environments,
        "traj_step": turn // environments + (~keep).long(),
        "mask": torch.from_numpy(generator.random(count) < 0.9),
    }
    step = {
        "observation": seen,
        "state": {"wide": wide},
        "is_init": torch.from_numpy(generator.random((count, 1)) < 0.05),
        "collector": collector,
        "next": {
            "observation": after,
            "state": {"wide": torch.cat([wide[environments:], wide[:environments]])},
            "reward": torch.zeros(count, 1),
            "steps_to_next_obs": torch.from_numpy(generator.integers(1, 3, size=(count, 1))),
            **flags,
        },
    }
    return TensorDict(step, batch_size=[count])


MARKERS = (
    ("collector", "traj_ids"),
    ("collector", "traj_step"),
    ("collector", "mask"),
    ("next", "steps_to_next_obs"),
    ("next", "terminated"),
    ("next", "done"),
    "is_init",
)


def store_of(storage: LazyTensorStorage) -> tuple[Any, ...]:
    """What the rows of a storage name, and who has which slot."""
    store = storage.store
    return store.addresses.values.tolist(), store.side.owners.tolist(), storage.back.tolist()


def bytes_of(rows: TensorDict) -> list[bytes]:
    """Leaves as bytes: NaN is equal to itself."""
    return [
        rows[key].contiguous().view(torch.uint8).numpy().tobytes() if rows[key].numel() else b""
        for key in sorted(rows.keys(True, True), key=str)
    ]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    gone=st.sets(st.sampled_from(MARKERS)),
    environments=st.integers(1, 4),
    odds=st.sampled_from([0.0, 0.7, 0.95, 1.0]),
    named=st.booleans(),
)
def test_the_compiled_loop_and_numpy_link_the_same_rows(
    seed: int, gone: set[Any], environments: int, odds: float, named: bool
) -> None:
    pytest.importorskip("numba")
    generator = np.random.default_rng(seed)
    rows = runs(generator, 90, environments, odds).exclude(*gone)
    bounds = sorted({0, *generator.integers(0, 91, size=4).tolist(), 90})
    one, two = (LazyTensorStorage(37, lossless=True) for _ in range(2))
    for storage, least in ((one, 1), (two, 1 << 62)):
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of contradictions, which are meant
            patch.setattr(writer, "ROWS_BEFORE_COMPILING", 0)
            patch.setattr(writer, "LEAST_ROWS", least)
            for start, stop in itertools.pairwise(bounds):
                for piece in rows[start:stop].split(37):
                    storage.extend(piece.refine_names("time") if named else piece)
    assert store_of(one) == store_of(two)
    live = (torch.arange(90 - 37, 90)) % 37
    expected = bytes_of(rows[-37:])
    assert bytes_of(one.read(live)) == bytes_of(two.read(live)) == expected

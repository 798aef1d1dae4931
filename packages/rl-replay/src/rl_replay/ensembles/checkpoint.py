"""An ensemble in memory or in a folder: the state of each buffer, and how buffers are chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from rl_replay.buffer.replay_buffer import ReplayBuffer
from rl_replay.checkpoint.checkpoint import warn_of_batch_size
from rl_replay.checkpoint.inner_folder import own_folder
from rl_replay.checkpoint.parts import Folder
from rl_replay.checkpoint.reader import Archive
from rl_replay.checkpoint.rollback import restored_on_failure
from rl_replay.checkpoint.writer import dump
from rl_replay.ensembles.sampler import SamplerEnsemble
from rl_transforms import Compose


class EnsembleState(Protocol):
    """What is saved of an ensemble: its buffers, and how they are chosen."""

    batch_size: int | None
    generator: torch.Generator | None

    def __iter__(self) -> Iterator[ReplayBuffer]: ...

    def __len__(self) -> int: ...

    @property
    def sampler(self) -> SamplerEnsemble:
        """How buffers are chosen."""
        ...

    @property
    def transform(self) -> Compose:
        """The transforms of whole batches."""
        ...

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Exchange the generator of the ensemble and of its buffers."""
        ...


class _OwnState:
    """The state of an ensemble apart from its buffers, as one of the parts that a load changes."""

    def __init__(self, ensemble: EnsembleState) -> None:
        self._ensemble = ensemble

    def state_dict(self) -> dict[str, Any]:
        return _own_state(self._ensemble) | {"generator": self._ensemble.generator}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        ensemble = self._ensemble
        ensemble.set_rng(state["generator"])
        _load_own(ensemble, state)
        ensemble.batch_size = state["batch_size"]


def state_of(ensemble: EnsembleState) -> dict[str, Any]:
    """Everything that the next samples of an ensemble depend on."""
    return {**_own_state(ensemble), "buffers": [buffer.state_dict() for buffer in ensemble]}


def load_state(ensemble: EnsembleState, state: Mapping[str, Any]) -> None:
    """Restores what `state_of` returned; where a buffer refuses its state, nothing changes."""
    if not isinstance(state, Mapping) or "buffers" not in state:
        raise ValueError("this is no state of an ensemble: give what its state_dict() returned.")
    _require_as_many(ensemble, len(state["buffers"]), "the state")
    asked = ensemble.batch_size
    with restored_on_failure([*ensemble, _OwnState(ensemble)]):
        for buffer, own in zip(ensemble, state["buffers"], strict=True):
            buffer.load_state_dict(own)
        _load_own(ensemble, state)
    warn_of_batch_size(asked, ensemble.batch_size)


def dump_ensemble(ensemble: EnsembleState, path: str) -> None:
    """Writes every buffer to a folder of its own, then the names of the folders in one step."""

    def write(made: Path) -> None:
        for number, buffer in enumerate(ensemble):
            buffer.dumps(made / str(number))

    state = {**_own_state(ensemble), "members": Folder(write), "count": len(ensemble)}
    dump(path, {"ensemble": state})


def load_ensemble(ensemble: EnsembleState, path: str) -> None:
    """Restores what `dump_ensemble` wrote; every byte is checked before a buffer changes."""
    with Archive(path) as archive:
        if "ensemble/members" not in archive.names():
            raise ValueError(f"{path} is no dump of an ensemble: load it into what wrote it.")
        archive.verify()
        state = archive.read("ensemble")
        _require_as_many(ensemble, state.get("count"), path)
        folders = folders_of_members(archive) or []
    for folder in folders:
        with Archive(folder) as archive:
            archive.verify()
    asked = ensemble.batch_size
    with restored_on_failure([*ensemble, _OwnState(ensemble)]):
        for buffer, folder in zip(ensemble, folders, strict=True):
            buffer.loads(folder)
        _load_own(ensemble, state)
    warn_of_batch_size(asked, ensemble.batch_size)


def folders_of_members(archive: Archive) -> list[Path] | None:
    """Where the dump of an ensemble has those of its buffers; None for another dump."""
    if "ensemble/members" not in archive.names():
        return None
    members, count = archive.folder_of("ensemble/members"), archive.part("ensemble/count")
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"{archive.folder} is of {count!r} buffers, which is no ensemble.")
    return [own_folder(members / str(number)) for number in range(count)]


def _own_state(ensemble: EnsembleState) -> dict[str, Any]:
    generator = ensemble.generator
    return {
        "sampler": ensemble.sampler.state_dict(),
        "transform": dict(ensemble.transform.state_dict()),
        "batch_size": ensemble.batch_size,
        "rng": None if generator is None else generator.get_state(),
    }


def _load_own(ensemble: EnsembleState, state: Mapping[str, Any]) -> None:
    ensemble.transform.load_state_dict(state["transform"])
    ensemble.sampler.load_state_dict(state["sampler"])
    if state["batch_size"] is not None:
        ensemble.batch_size = state["batch_size"]
    if state["rng"] is not None:
        # the buffers of one ensemble draw from the same generator
        ensemble.set_rng(ensemble.generator or torch.Generator())
        assert ensemble.generator is not None  # just set
        ensemble.generator.set_state(state["rng"])


def _require_as_many(ensemble: EnsembleState, count: Any, source: str) -> None:
    if count != len(ensemble):
        raise ValueError(
            f"{source} is of {count} buffers, and this ensemble has {len(ensemble)}: make one of "
            "as many."
        )

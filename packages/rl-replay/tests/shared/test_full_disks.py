"""Rows with other keys, and first rows, for which a disk has no room."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rl_layout.testing import trajectories
from rl_replay import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer

KINDS = {
    "memory, two lanes": lambda **options: LazyTensorStorage(24, lanes=2, **options),
    "file, two lanes": lambda **options: LazyMemmapStorage(24, lanes=2, **options),
    "file, one lane": lambda **options: LazyMemmapStorage(24, **options),
}


def rows(key: str, count: int) -> TensorDict:
    return TensorDict({key: torch.arange(count) + 1.0}, [count])


def shared(storage: Any) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=storage, shared=storage.lanes is not None)


def handed(buffer: TensorDictReplayBuffer) -> TensorDictReplayBuffer:
    return pickle.loads(pickle.dumps(buffer))


def no_space(*_: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lossless", [False, True])
def test_what_could_not_be_left_is_written_on(
    kind: str, lossless: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = {"scratch_dir": tmp_path} if "file" in kind else {}
    buffer = shared(KINDS[kind](lossless=lossless, **options))
    buffer.extend(trajectories([5]))
    other = handed(buffer)
    names = sorted(os.listdir(tmp_path))
    inodes = [os.stat(tmp_path / name).st_ino for name in names]
    buffer.empty()

    more = trajectories([4])
    more["more"] = torch.zeros(4)
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(OSError, match="No space"):
        buffer.extend(more)
    monkeypatch.undo()
    if lossless:
        with pytest.raises(ValueError, match="nothing to store once"):
            buffer.extend(rows("b", 4))
    assert [os.stat(tmp_path / name).st_ino for name in names] == inodes
    assert sorted(os.listdir(tmp_path)) == names
    buffer.extend(trajectories([7]))
    assert len(other) == len(buffer) == 7
    assert other.storage.trajectories().lengths().tolist() == [7]
    buffer.empty()
    buffer.extend(more)
    assert sorted(os.listdir(tmp_path)) == names
    assert not set(inodes[:1]) & {os.stat(tmp_path / name).st_ino for name in names}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lossless", [False, True])
def test_whatever_there_is_no_room_for_the_former_keys_go_on(
    kind: str, lossless: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    take, calls, failed = os.posix_fallocate, 0, 0
    more = trajectories([4])
    more["more"] = torch.zeros(4)
    for fails in range(1, 8):
        options = {"scratch_dir": tmp_path / str(fails)} if "file" in kind else {}
        buffer = shared(KINDS[kind](lossless=lossless, **options))
        buffer.extend(trajectories([5]))
        buffer.empty()
        calls = 0

        def short(*room: int, at: int = fails) -> None:
            nonlocal calls
            calls += 1
            if calls == at:
                raise OSError(errno.ENOSPC, "No space left on device")
            take(*room)

        monkeypatch.setattr(os, "posix_fallocate", short)
        try:
            buffer.extend(more)
            buffer.empty()
        except OSError:
            failed += 1
        monkeypatch.undo()
        buffer.extend(trajectories([7]))
        again = handed(buffer)
        assert (again[:]["observation"] == trajectories([7])["observation"]).all()
        if options:
            path = tmp_path / str(fails) / "rows.slab"
            assert path.stat().st_size > 1_000
            assert not [name for name in os.listdir(path.parent) if not name.endswith(".slab")]
    assert failed >= (3 if lossless else 1)


def test_a_shared_file_has_its_name_also_behind_a_failed_first_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    storage = LazyMemmapStorage(24, scratch_dir=tmp_path)
    buffer = TensorDictReplayBuffer(storage=storage, shared=True)
    assert sorted(os.listdir(tmp_path)) == ["rows.slab", "settings.json", "tables.slab"]
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(OSError, match="No space"):
        buffer.extend(rows("a", 3))
    monkeypatch.undo()
    buffer.extend(rows("a", 3))
    assert sorted(os.listdir(tmp_path)) == ["rows.slab", "tables.slab"]
    assert all(os.stat(tmp_path / name).st_size > 1_000 for name in os.listdir(tmp_path))

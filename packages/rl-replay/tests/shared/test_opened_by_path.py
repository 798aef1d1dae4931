"""Mapped storages that are opened by the path of their folder, in this process and in others."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tensordict import TensorClass

from rl_layout import EndKind
from rl_layout.testing import environments, trajectories
from rl_replay import LazyMemmapStorage, ReplayBuffer, SliceSampler

KINDS = {
    "plain": {},
    "lossless": {"lossless": True},
    "lossless by name": {"lossless": ["observation"]},
    "lanes": {"lanes": 3},
    "columns": {"ndim": 2},
}

PROGRAM = """
import sys
from rl_layout.synthetic import trajectories
from rl_replay import LazyMemmapStorage, ReplayBuffer, SliceSampler

folder, how = sys.argv[1:]
if how == "make":
    storage = LazyMemmapStorage(60, scratch_dir=folder, lossless=True)
else:
    storage = LazyMemmapStorage.open(folder)
sampler = SliceSampler(slice_len=2, strict_length=True)
buffer = ReplayBuffer(storage=storage, sampler=sampler, batch_size=4)
buffer.extend(trajectories([6, 3], first_id=70))
print(len(buffer), len(buffer.sample()))
"""


def elsewhere(folder: Path, how: str) -> list[int]:
    """Run the program above in a fresh process."""
    command = [sys.executable, "-c", PROGRAM, str(folder), how]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return [int(number) for number in done.stdout.split()]


def over(storage):
    return ReplayBuffer(
        storage=storage, sampler=SliceSampler(slice_len=2, strict_length=True), batch_size=4
    )


@pytest.mark.parametrize("kind", KINDS)
def test_who_opens_a_folder_sees_and_writes_the_same_rows(tmp_path, kind):
    first = over(LazyMemmapStorage(60, scratch_dir=tmp_path, **KINDS[kind]))
    early = trajectories([7, 5], EndKind.CUT)
    late = trajectories([4, 6], first_id=50)
    if kind == "columns":
        early, late = early.reshape(2, 6), environments(2, 5, [5], [EndKind.CUT])
    first.extend(early)
    second = over(LazyMemmapStorage.open(tmp_path))
    assert (second[:] == first[:]).all()
    assert second.storage.max_size == first.storage.max_size
    second.extend(late)
    assert len(first) == len(second) == early.numel() + late.numel()
    assert (first[:] == second[:]).all()
    lengths = [sorted(one.storage.trajectories().lengths().tolist()) for one in (first, second)]
    assert lengths[0] == lengths[1]
    assert len(first.sample()) == len(second.sample()) == 4


def test_a_process_attaches_by_path_while_another_one_writes(tmp_path):
    buffer = over(LazyMemmapStorage(60, scratch_dir=tmp_path, lossless=True))
    buffer.extend(trajectories([5]))
    assert elsewhere(tmp_path, "open") == [14, 4]
    assert len(buffer) == 14
    assert sorted(buffer.storage.trajectories().lengths().tolist()) == [3, 5, 6]
    buffer.extend(trajectories([4], first_id=90))
    assert len(buffer) == 18


@pytest.mark.parametrize("first_writer", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_opened_before_its_first_rows_come(tmp_path, kind, first_writer):
    made = over(LazyMemmapStorage(60, scratch_dir=tmp_path, **KINDS[kind]))
    opened = over(LazyMemmapStorage.open(tmp_path))
    assert len(opened) == 0
    assert opened.storage.max_size == made.storage.max_size
    rows = environments(2, 6, [5], [EndKind.CUT])
    rows = rows if kind == "columns" else rows.reshape(-1)
    first, second = (made, opened) if first_writer == 0 else (opened, made)
    first.extend(rows)
    second.extend(rows)
    assert len(made) == len(opened) == 24
    assert (made[:] == opened[:]).all()
    assert opened.storage.lossless is not None
    assert "settings.json" not in {path.name for path in tmp_path.iterdir()}
    assert len(over(LazyMemmapStorage.open(tmp_path))) == 24


def test_lanes_and_columns_of_a_buffer_without_rows_are_those_of_who_made_it(tmp_path):
    storage = LazyMemmapStorage(60, scratch_dir=tmp_path, ndim=2)
    made = ReplayBuffer(storage=storage, dim_extend=0, shared=True)
    opened = LazyMemmapStorage.open(tmp_path)
    assert opened.ring.lanes == made.storage.ring.lanes == 8
    assert opened.arrangement == made.storage.arrangement


def test_a_process_that_opens_an_empty_folder_writes_what_the_maker_reads(tmp_path):
    buffer = over(LazyMemmapStorage(60, scratch_dir=tmp_path, lossless=True))
    assert elsewhere(tmp_path, "open") == [9, 4]
    assert (buffer[:] == trajectories([6, 3], first_id=70)).all()


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"capacity": 9}', '{"capacity": -1, "lanes": 1, "ndim": 1}']
)
def test_settings_of_another_form_are_refused(tmp_path, text):
    _ = over(LazyMemmapStorage(60, scratch_dir=tmp_path))
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(ValueError, match=r"settings\.json does not say"):
        LazyMemmapStorage.open(tmp_path)


def test_a_folder_whose_process_has_ended_is_opened_again(tmp_path):
    assert elsewhere(tmp_path, "make") == [9, 4]
    buffer = over(LazyMemmapStorage.open(tmp_path))
    assert (buffer[:] == trajectories([6, 3], first_id=70)).all()
    buffer.extend(trajectories([6], first_id=80))
    assert sorted(buffer.storage.trajectories().lengths().tolist()) == [3, 6, 6]
    buffer.storage.trajectories().check(buffer.storage.back)


def test_a_folder_without_a_storage_says_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"rows\.slab is missing"):
        LazyMemmapStorage.open(tmp_path)
    buffer = over(LazyMemmapStorage(9, scratch_dir=tmp_path))
    (tmp_path / "settings.json").unlink()
    with pytest.raises(ValueError, match="nothing was written to"):
        LazyMemmapStorage.open(tmp_path)
    buffer.extend(trajectories([3]))
    (tmp_path / "tables.slab").unlink()
    with pytest.raises(FileNotFoundError, match=r"tables\.slab is missing"):
        LazyMemmapStorage.open(tmp_path)


@pytest.mark.parametrize("name", ["rows.slab", "tables.slab"])
@pytest.mark.parametrize("size", [3, 40, 700])
def test_a_file_that_was_cut_short_is_refused(tmp_path, name, size):
    over(LazyMemmapStorage(60, scratch_dir=tmp_path)).extend(trajectories([3]))
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"\w"):
        LazyMemmapStorage.open(tmp_path)


class Step(TensorClass):
    a: torch.Tensor


def test_rows_of_a_class_that_is_not_known_here_are_refused(tmp_path):
    over(LazyMemmapStorage(9, scratch_dir=tmp_path)).extend(Step(torch.zeros(3), batch_size=[3]))
    assert isinstance(over(LazyMemmapStorage.open(tmp_path))[:], Step)
    with pytest.raises(subprocess.CalledProcessError) as failed:
        elsewhere(tmp_path, "open")
    assert "does not know: pass the class to rl_replay.register_container" in failed.value.stderr

import gc
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_datasets import BaseDatasetExperienceReplay, StreamOptions
from rl_datasets.testing import ListSource, toy_episodes
from rl_layout import check_layout
from rl_replay import ImmutableDatasetWriter, ReplayBufferEnsemble, SliceSampler

LONGEST_S = 60  # a sample that takes longer waits forever


class Reads(ListSource):
    """Counts how often it is read."""

    times = 0

    def episodes(self, first=0):
        self.times += 1
        yield from super().episodes(first)


def streamed(source, tmp_path, batch_size=8, ring_rows=64, draws=1.0, epochs=None, **options):
    class Toy(BaseDatasetExperienceReplay):
        family = "toy"

        def source(self, path):
            return source

    ring = StreamOptions(ring_rows=ring_rows, draws_per_row=draws, epochs=epochs)
    return Toy("one", batch_size, path=tmp_path, root=tmp_path, streaming=ring, **options)


def threads():
    return [one for one in threading.enumerate() if one.name == "rl-datasets stream"]


def check_rows(rows, episodes):
    """Every row against the step of the episode that it says it is."""
    for row in rows:
        episode, step = episodes[int(row["episode"])], int(row["collector", "traj_step"])
        for key, column in episode.observations.items():
            assert np.array_equal(row[key].numpy(), column[step])
            if step + 1 < len(column):
                # missing for the moment where the row after it is still to be written
                is_missing = not episode.has_last and bool(row["collector", "next_missing"])
                after = row[("next", *key)].numpy()
                assert is_missing or np.array_equal(after, column[step + 1])
            else:
                assert row["collector", "next_missing"]
        for key in [("action",), ("next", "reward"), ("next", "terminated")]:
            column = episode.columns[key]
            assert np.array_equal(row[key].numpy().reshape(column[step].shape), column[step])


@pytest.mark.parametrize("has_last", [True, False])
def test_what_is_drawn_are_steps_of_the_files(tmp_path, has_last):
    episodes = toy_episodes([7, 30, 1, 90, 12, 25, 40], has_last=has_last)  # 90: in pieces
    data = streamed(ListSource(episodes), tmp_path, epochs=3)
    batches = list(data)
    assert len(batches) == 3 * 205 // 8
    check_rows(torch.cat(batches), episodes)
    assert len(data) == data.storage.max_size == 64
    # a note: the ring wraps to its first row
    assert {finding.severity for finding in check_layout(data[:]).findings} <= {"note"}
    seen = {int(number) for batch in batches for number in batch["episode"]}
    assert seen >= {1, 3, 5, 6}


def test_options_may_be_numbers_of_numpy(tmp_path):
    options = {"ring_rows": np.int64(64), "epochs": np.int64(3), "draws": np.float32(1)}
    data = streamed(ListSource(toy_episodes([7, 30, 1, 90, 12, 25, 40])), tmp_path, **options)
    assert len(list(data)) == 3 * 205 // 8


def test_slices_are_drawn_as_of_any_buffer(tmp_path):
    episodes = toy_episodes([20] * 30)
    data = streamed(ListSource(episodes), tmp_path, slice_len=4, ring_rows=100)
    for _ in range(100):
        sample = data.sample(timeout=LONGEST_S)
        assert sample["collector", "slice_ids"].tolist() == [0] * 4 + [1] * 4
        assert sample["collector", "traj_step"].reshape(2, 4).diff().eq(1).all()
        assert sample["collector", "traj_ids"].reshape(2, 4).diff().eq(0).all()
    data.close()


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any),
    ring_rows=st.integers(16, 90),
    batch_size=st.integers(1, 8),
    draws=st.sampled_from([1.0, 1.5, 4.0]),
    epochs=st.integers(1, 3),
)
def test_a_stream_ends_after_its_draws(
    tmp_path_factory, lengths, ring_rows, batch_size, draws, epochs
):
    folder = tmp_path_factory.mktemp("one")
    data = streamed(ListSource(toy_episodes(lengths)), folder, batch_size, ring_rows, draws, epochs)
    count = int(draws * epochs * sum(lengths)) // batch_size
    for _ in range(count):
        assert len(data.sample(timeout=LONGEST_S)) == batch_size
    with pytest.raises(RuntimeError, match="the stream of one has ended"):
        data.sample(timeout=LONGEST_S)
    assert not list(data)
    assert data.report.steps == sum(lengths)
    assert data.report.episodes == len(lengths)


def test_files_that_fit_are_read_once(tmp_path):
    source = Reads(toy_episodes([20, 30]))
    data = streamed(source, tmp_path)
    for _ in range(100):
        data.sample(timeout=LONGEST_S)
    assert source.times == 1
    assert len(data) == 50
    assert not threads()


def test_ids_are_never_those_of_an_earlier_epoch(tmp_path):
    data = streamed(ListSource(toy_episodes([40, 40])), tmp_path, epochs=2)
    ids = torch.cat([batch["collector", "traj_ids"] for batch in data]).unique()
    assert ids.diff().ge(1).all()
    assert ids.max() - ids.min() <= 3


def test_an_error_of_the_reader_is_raised_by_the_next_samples(tmp_path):
    class Damaged(Reads):
        def episodes(self, first=0):
            yield from super().episodes(first)
            if self.times == 2:
                raise ValueError("a file, episode 9: the file is damaged")

    data = streamed(Damaged(toy_episodes([20] * 9)), tmp_path, draws=0.3)
    for _ in range(2):
        with pytest.raises(ValueError, match="episode 9: the file is damaged"):
            list(data)
    data.close()
    assert not threads()


def test_files_without_a_step_and_damaged_first_ones_are_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match="one: there is no step"):
        streamed(ListSource([]), tmp_path)
    one, other = toy_episodes([3, 2])
    del other.columns["action",]
    with pytest.raises(ValueError, match=r"episode 1: there is no column \('action',\)"):
        streamed(ListSource([one, other]), tmp_path)
    assert not threads()


def test_closing_leaves_no_thread(tmp_path):
    data = streamed(ListSource(toy_episodes([40] * 9)), tmp_path)
    data.sample()
    assert threads()
    data.close()
    data.close()
    assert not threads()
    with pytest.raises(RuntimeError, match="the stream was closed"):
        data.sample()


def test_a_loop_that_stops_early_in_a_block_leaves_no_thread(tmp_path):
    with streamed(ListSource(toy_episodes([40] * 9)), tmp_path) as data:
        for batch in data:
            assert len(batch)
            break
        assert threads()
    assert not threads()


def test_a_buffer_that_is_dropped_leaves_no_thread(tmp_path):
    data = streamed(ListSource(toy_episodes([40] * 9)), tmp_path)
    data.sample()
    (thread,) = threads()
    del data
    for _ in range(LONGEST_S):  # it holds the buffer while it writes
        gc.collect()
        thread.join(1)
        if not thread.is_alive():
            return
    pytest.fail("the thread of the stream still runs")


INTERRUPTED = """
import os, signal, sys
from pathlib import Path
from rl_datasets import BaseDatasetExperienceReplay, StreamOptions
from rl_datasets.testing import ListSource, toy_episodes

class Toy(BaseDatasetExperienceReplay):
    family = "toy"

    def source(self, path):
        return ListSource(toy_episodes([40] * 9))

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
here = Path(sys.argv[1])
data = Toy("one", 8, path=here, root=here, streaming=StreamOptions(ring_rows=64))
for number, batch in enumerate(data):
    if number == 100:
        print("drawn", flush=True)
"""


def test_an_interrupt_ends_the_program(tmp_path):
    program = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    try:
        assert program.stdout.readline() == "drawn\n"
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=LONGEST_S)
    finally:
        program.kill()  # where it did not end, it would draw forever
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert program.returncode == -signal.SIGINT


def test_what_excludes_a_stream_is_refused(tmp_path):
    source = ListSource(toy_episodes([40] * 9))
    for options, message in [
        ({"split_trajs": True}, "holds all trajectories at once"),
        ({"writer": ImmutableDatasetWriter()}, "a writer of its own"),
        ({"prefetch": 2}, "reads ahead already"),
    ]:
        with pytest.raises(ValueError, match=message):
            streamed(source, tmp_path, **options)
    data = streamed(source, tmp_path, sampler=SliceSampler(num_slices=2))
    with pytest.raises(RuntimeError, match="the rows of a stream come from its files"):
        data.extend(data.sample())
    with pytest.raises(TypeError, match="streaming out"):
        data.preprocess(lambda rows: rows)
    with pytest.raises(TypeError, match="no member of an ensemble"):
        ReplayBufferEnsemble(data, batch_size=4).sample()
    with pytest.raises(ValueError, match="need a ring of 66 rows, and it has 64"):
        data.sample(33)
    data.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ring_rows": 15}, "at least 16, got 15"),
        ({"draws_per_row": 0}, "above 0, got 0"),
        ({"draws_per_row": float("nan")}, "expected a number, got nan"),
        ({"epochs": 0}, "at least 1, got 0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        StreamOptions(**options)


@pytest.mark.parametrize("name", ["ring_rows", "draws_per_row", "epochs"])
def test_options_that_are_no_numbers_are_named(name):
    with pytest.raises(TypeError, match=f"{name}: expected a (whole )?number, got"):
        StreamOptions(**{name: {}})

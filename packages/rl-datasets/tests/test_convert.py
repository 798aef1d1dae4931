import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_datasets import DatasetReport, Episode, convert
from rl_datasets.convert import CONVERTING, JOURNAL_FILE
from rl_datasets.testing import ListSource, toy_episodes
from rl_layout import check_layout
from rl_replay import LazyMemmapStorage

LONG = 9_000  # steps: two such episodes are a chunk


def rows_of(folder):
    return LazyMemmapStorage.open(folder)[:]


def check_rows(rows, episodes):
    """Every transition, step by step, against the episodes."""
    row, missing = 0, rows.get(("collector", "next_missing"), torch.zeros(len(rows), dtype=bool))
    for episode in episodes:
        for step in range(len(episode)):
            one = rows[row]
            for key, column in episode.observations.items():
                assert np.array_equal(one[key].numpy(), column[step])
                assert bool(missing[row]) == (step + 1 == len(column))
                if step + 1 < len(column):
                    assert np.array_equal(one[("next", *key)].numpy(), column[step + 1])
            for key, column in episode.columns.items():
                assert np.array_equal(one[key].numpy().reshape(column[step].shape), column[step])
            assert bool(one["is_init"]) == (step == 0)
            assert int(one["collector", "traj_step"]) == step
            row += 1
    assert row == len(rows)
    assert not check_layout(rows).findings


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any),
    st.lists(st.booleans(), min_size=6, max_size=6),
    st.sampled_from(["terminated", "truncated", "cut"]),
)
def test_every_transition_is_that_of_the_episode(tmp_path_factory, lengths, has_last, ends):
    episodes = [
        Episode(one.observations, one.columns, one.place, number)
        for number, (steps, last) in enumerate(zip(lengths, has_last, strict=False))
        for one in toy_episodes([steps], has_last=last, ends=ends, seed=number)
    ]
    folder = convert(ListSource(episodes), tmp_path_factory.mktemp("one"), "toy")
    check_rows(rows_of(folder), episodes)
    report = DatasetReport.load(folder)
    real = [episode for episode in episodes if len(episode)]
    assert (report.steps, report.episodes) == (sum(lengths), len(lengths))
    assert report.next_missing == sum(not episode.has_last for episode in real)
    assert getattr(report, ends) == len(real) == report.trajectories


def test_an_end_inside_an_episode_cuts(tmp_path):
    (episode,) = toy_episodes([5], ends="cut")
    episode.columns["next", "terminated"][1] = True
    rows = rows_of(convert(ListSource([episode]), tmp_path, "toy"))
    assert rows["is_init"].flatten().tolist() == [True, False, True, False, False]
    assert rows["collector", "traj_step"].tolist() == [0, 1, 0, 1, 2]
    assert rows["collector", "traj_ids"].diff().tolist() == [0, 1, 0, 0]
    assert np.array_equal(rows["next", "observation"], episode.observations["observation",][1:])
    (finding,) = check_layout(rows).findings
    assert finding.severity == "note"  # right only where the environment continued, as here


def test_ids_are_those_of_the_dataset_whenever_it_is_converted(tmp_path):
    first, again, other = (
        rows_of(convert(ListSource(toy_episodes([2, 3])), tmp_path / name, dataset))
        for name, dataset in [("a", "toy"), ("b", "toy"), ("c", "other")]
    )
    ids = first["collector", "traj_ids"]
    assert torch.equal(ids, again["collector", "traj_ids"])
    assert not set(ids.tolist()) & set(other["collector", "traj_ids"].tolist())


def test_the_report_has_counts_ranges_and_numbers(tmp_path):
    episodes = toy_episodes([4, 2], ends="truncated")
    episodes[0].columns["next", "reward"][:] = [1, 2, 3, np.nan]
    episodes[1] = Episode(episodes[1].observations, episodes[1].columns, "here", 3)
    report = DatasetReport.load(convert(ListSource(episodes), tmp_path, "toy"))
    assert (report.shortest, report.longest, report.gaps, report.duplicates) == (2, 4, 2, 0)
    rewards = report.columns["next/reward"]
    low, high = min(1, *episodes[1].columns["next", "reward"]), 3
    assert (rewards.low, rewards.high, rewards.not_finite) == (low, high, 1)
    last = max(episode.observations["observation",].max() for episode in episodes)
    assert report.columns["observation"].high == pytest.approx(last)
    assert "2 left out" in str(report)
    assert "next observation missing: 0" in repr(report)


def test_nothing_to_convert_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no step"):
        convert(ListSource([]), tmp_path, "toy")
    with pytest.raises(ValueError, match="there is no step"):
        convert(ListSource(toy_episodes([0, 0])), tmp_path, "toy")
    assert not (tmp_path / "rows").exists()


def test_more_steps_than_the_source_said_are_refused(tmp_path):
    class Short(ListSource):
        steps = 4

    with pytest.raises(ValueError, match="toy, episode 1: more than the 4 steps"):
        convert(Short(toy_episodes([3, 2])), tmp_path, "toy")
    assert not (tmp_path / "rows").exists()


def test_a_column_that_goes_missing_is_refused(tmp_path):
    one, other = toy_episodes([3, 2])
    del other.columns["action",]
    with pytest.raises(ValueError, match=r"episode 1: there is no column \('action',\)"):
        convert(ListSource([one, other]), tmp_path, "toy")


def test_another_process_that_converts_is_an_error(tmp_path):
    with (tmp_path / "converting.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RuntimeError, match="another process converts"):
            convert(ListSource(toy_episodes([3])), tmp_path, "toy")


KILLED = """
import os, signal, sys
from pathlib import Path
from rl_datasets import convert
from rl_datasets.testing import ListSource, toy_episodes

class Dies(ListSource):
    def episodes(self, first=0):
        for number, episode in enumerate(self.given[first:]):
            if number == 8:  # two pairs are written, the third may be in part
                os.kill(os.getpid(), signal.SIGKILL)
            yield episode

convert(Dies(toy_episodes([9_000] * 10)), Path(sys.argv[1]), "toy")
"""


class Noting(ListSource):
    """Notes where reading begins."""

    began = None

    def episodes(self, first=0):
        self.began = first
        return super().episodes(first)


@pytest.fixture(scope="module")
def killed_folder(tmp_path_factory):
    """A folder whose conversion was killed after two chunks or three, of ten episodes in five."""
    folder = tmp_path_factory.mktemp("killed")
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (folder / "rows").exists()
    return folder


def test_a_killed_conversion_goes_on_where_it_was(tmp_path, killed_folder):
    shutil.copytree(killed_folder, tmp_path, dirs_exist_ok=True)
    episodes = toy_episodes([LONG] * 10)
    source = Noting(episodes)
    # a line for rows that were not written any more, as a kill between the two leaves it
    journal = tmp_path / CONVERTING / JOURNAL_FILE
    line = json.loads(journal.read_text().splitlines()[-1])
    line["report"] |= {"steps": 10 * LONG, "episodes": 10}
    with journal.open("a") as file:
        file.write(json.dumps(line) + "\n{half")
    report = DatasetReport.load(convert(source, tmp_path, "toy"))
    assert source.began in (4, 6)
    whole = DatasetReport.load(convert(ListSource(episodes), tmp_path / "whole", "toy"))
    for name, value in whole.to_dict().items():
        if name != "seconds":
            assert getattr(report, name) == getattr(whole, name), value
    found, expected = rows_of(tmp_path / "rows"), rows_of(tmp_path / "whole" / "rows")
    assert (found == expected).all()
    assert not os.path.exists(tmp_path / CONVERTING)


def test_a_killed_conversion_of_other_files_begins_anew(tmp_path, killed_folder):
    shutil.copytree(killed_folder, tmp_path, dirs_exist_ok=True)
    episodes = toy_episodes([LONG] * 10, seed=1)

    class Other(Noting):
        @property
        def options(self):
            return {"version": 2}

    source = Other(episodes)
    convert(source, tmp_path, "toy")
    assert source.began == 0
    assert np.array_equal(
        rows_of(tmp_path / "rows")["action"][:LONG], episodes[0].columns["action",]
    )


KILLED_ANYWHERE = """
import os, signal, sys
from pathlib import Path
import numpy as np
import rl_datasets.chunk
from rl_datasets import DatasetReport, convert
from rl_datasets.testing import ListSource, toy_episodes
from rl_replay import LazyMemmapStorage

rl_datasets.chunk.CHUNK_ROWS = 50  # many chunks of few rows
here, points = Path(sys.argv[1]), int(sys.argv[2])
episodes = toy_episodes([20, 7, 0, 31] * 6)

def in_child(folder, kill_at=None):
    \"\"\"Converts in a child, which is killed at a call; how many calls there were.\"\"\"
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        calls = int((folder / "calls").read_text()) if os.WIFEXITED(status) else -1
        assert os.WIFEXITED(status) or os.WTERMSIG(status) == signal.SIGKILL
        assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
        return calls
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += 1
        if calls == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)  # of this thread, which writes
    try:
        convert(ListSource(episodes), folder, "toy", bar=False)
    except BaseException as error:
        sys.setprofile(None)
        print(repr(error), flush=True)
        os._exit(1)
    sys.setprofile(None)
    (folder / "calls").write_text(str(calls))
    os._exit(0)

def state(folder):
    report = DatasetReport.load(folder / "rows").to_dict()
    report.pop("seconds")
    return report, LazyMemmapStorage.open(folder / "rows")[:]

whole = here / "whole"
whole.mkdir()
total = in_child(whole)
report, rows = state(whole)
continued = 0
for point in np.linspace(1, total - 1, points).astype(int):
    folder = here / str(point)
    folder.mkdir()
    if in_child(folder, point) != -1:
        continue  # a conversion with fewer calls than the first one
    continued += (folder / "converting" / "journal.jsonl").exists()
    assert in_child(folder) > 0, point
    found, again = state(folder)
    assert found == report, point
    assert (again == rows).all(), point
    assert sorted(one.name for one in folder.iterdir()) == ["calls", "converting.lock", "rows"]
print("continued", continued)
"""


@pytest.mark.parametrize("points", [25, pytest.param(400, marks=pytest.mark.slow)])
def test_a_kill_at_any_call_leaves_what_can_be_converted(tmp_path, points):
    program = [sys.executable, "-c", KILLED_ANYWHERE, str(tmp_path), str(points)]
    done = subprocess.run(program, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-1]) > points / 2

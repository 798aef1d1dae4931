import json
from fractions import Fraction

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_datasets import LeRobotExperienceReplay, to_lerobot
from rl_layout.testing import EndKind, trajectories
from rl_replay import LazyTensorStorage, TensorDictReplayBuffer

LENGTHS = [5, 3, 8]
KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]


def steps():
    rows = trajectories(LENGTHS, KINDS)
    frames = torch.randint(256, (17, 3, 4, 2), dtype=torch.uint8)
    after = frames[1:].clone()
    after[torch.tensor(LENGTHS).cumsum(0) - 1] = torch.randint(256, (3, 3, 4, 2)).byte()
    rows["observation"] = TensorDict({"place": rows["observation"], "frame": frames[:-1]}, [16])
    rows["next", "observation"] = TensorDict(
        {"place": rows["next", "observation"], "frame": after}, [16]
    )
    rows["log_prob"] = torch.randn(16, dtype=torch.float64)
    return rows


def read_back(folder, root):
    options = {"path": folder, "root": root / "r", "verbose": False}
    return LeRobotExperienceReplay("me/back", **options)[:]


def check_same(found, rows):
    assert (found["observation"] == rows["observation"]).all()
    for key in ["action", "log_prob", "is_init"]:
        assert torch.equal(found[key], rows[key])
    for key in ["reward", "terminated", "truncated", "done"]:
        assert torch.equal(found["next", key], rows["next", key])


def test_a_buffer_comes_back_bit_for_bit_last_observations_too(tmp_path):
    rows = steps()
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100))
    buffer.extend(rows)
    found = read_back(to_lerobot(buffer, "me/out", root=tmp_path), tmp_path)
    check_same(found, rows)
    assert (found["next", "observation"] == rows["next", "observation"]).all()


def test_a_plain_observation_comes_back_under_its_name(tmp_path):
    rows = trajectories(LENGTHS, KINDS)
    folder = to_lerobot(rows, "me/out", root=tmp_path, fps=10, task="walk", robot_type="ant")
    assert torch.equal(
        read_back(folder, tmp_path)["next", "observation"], rows["next", "observation"]
    )
    info = json.loads((folder / "meta" / "info.json").read_text())
    assert info["features"]["observation.state"] == {
        "dtype": "float32",
        "shape": [2],
        "names": None,
    }
    assert (info["total_episodes"], info["total_frames"], info["robot_type"]) == (3, 16, "ant")
    stats = json.loads((folder / "meta" / "stats.json").read_text())["next.reward"]
    assert (stats["min"], stats["max"], stats["count"]) == ([1.0], [8.0], [16])
    reward = rows["next", "reward"].double()
    assert stats["mean"] == pytest.approx([reward.mean().item()])
    assert stats["std"] == pytest.approx([reward.std(correction=0).item()])


def test_missing_last_observations_stay_missing(tmp_path):
    rows = steps()
    rows["collector", "next_missing"] = torch.arange(16) == 7
    found = read_back(to_lerobot(rows, "me/out", root=tmp_path), tmp_path)
    check_same(found, rows)
    assert found["collector", "next_missing"].nonzero().flatten().tolist() == [7]
    rest = torch.arange(16) != 7
    assert (found[rest]["next", "observation"] == rows[rest]["next", "observation"]).all()


@pytest.mark.parametrize("fps", [10, 12.5, np.int64(10), np.float32(12.5), Fraction(25, 2)])
def test_steps_a_second_may_be_any_number_above_0(tmp_path, fps):
    folder = to_lerobot(trajectories([3]), "me/out", root=tmp_path, fps=fps)
    info = json.loads((folder / "meta" / "info.json").read_text())
    assert info["fps"] == fps
    data = LeRobotExperienceReplay("me/back", path=folder, root=tmp_path / "r", verbose=False)
    assert data[:]["timestamp"].flatten().tolist() == pytest.approx([0, 1 / fps, 2 / fps])


@pytest.mark.parametrize("fps", [0, -1, float("inf")])
def test_no_steps_a_second_are_refused_before_anything_is_written(tmp_path, fps):
    with pytest.raises(ValueError, match="fps: expected a number of steps a second above 0"):
        to_lerobot(trajectories([3]), "me/out", root=tmp_path, fps=fps)
    assert not list(tmp_path.iterdir())


def test_a_dataset_is_not_overwritten_and_not_empty(tmp_path):
    to_lerobot(steps(), "me/out", root=tmp_path)
    with pytest.raises(FileExistsError, match="take another id"):
        to_lerobot(steps(), "me/out", root=tmp_path)
    with pytest.raises(ValueError, match="no step"):
        to_lerobot([], "me/none", root=tmp_path)
    assert not (tmp_path / "me" / "none").exists()


@pytest.mark.parametrize(
    ("name", "root", "more", "message"),
    [
        (3, "x", {}, "expected the name of a dataset, got 3"),
        ("one", 3, {}, "root: expected the name of a file or folder, got 3"),
        ("one", "x", {"metadata": "a"}, "metadata: expected what is to be told of it"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, name, root, more, message):
    root = tmp_path / root if isinstance(root, str) else root
    with pytest.raises(TypeError, match=message):
        to_lerobot(trajectories([3]), name, root=root, **more)
    assert not list(tmp_path.iterdir())

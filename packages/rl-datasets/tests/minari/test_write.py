import gymnasium
import numpy as np
import pytest
import torch
from minari import MinariDataset
from tensordict import TensorDict

from rl_datasets import MinariExperienceReplay, to_minari
from rl_layout.testing import EndKind, trajectories
from rl_replay import LazyTensorStorage, TensorDictReplayBuffer

LENGTHS = [5, 3, 8]
KINDS = [EndKind.TERMINATED, EndKind.TRUNCATED, EndKind.CUT]


def steps():
    """Three trajectories that end in the three ways, with observations of two kinds."""
    rows = trajectories(LENGTHS, KINDS)
    noise = torch.randn(len(rows) + 1, 4, dtype=torch.float64)
    lasts = torch.tensor(LENGTHS).cumsum(0) - 1
    after = noise[1:].clone()
    after[lasts] = torch.randn(3, 4, dtype=torch.float64)
    rows["observation"] = TensorDict({"place": rows["observation"], "noise": noise[:-1]}, [16])
    rows["next", "observation"] = TensorDict(
        {"place": rows["next", "observation"], "noise": after}, [16]
    )
    return rows


def read_back(folder, root):
    return MinariExperienceReplay("demo/back-v0", path=folder, root=root, verbose=False)[:]


def check_same(found, rows):
    for key in ["observation", "action"]:
        assert (found[key] == rows[key]).all()
        if key == "observation":
            assert (found["next", key] == rows["next", key]).all()
    for key in ["reward", "terminated", "truncated", "done"]:
        assert torch.equal(found["next", key], rows["next", key])
        assert found["next", key].dtype == rows["next", key].dtype
    assert torch.equal(found["is_init"], rows["is_init"])


def test_a_buffer_comes_back_bit_for_bit(tmp_path):
    rows = steps()
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100))
    buffer.extend(rows)
    check_same(read_back(to_minari(buffer, "demo/out-v0", root=tmp_path), tmp_path / "r"), rows)


def test_a_ring_that_wrapped_is_written_by_trajectory(tmp_path):
    rows = steps()
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20))
    buffer.extend(trajectories([9], first_id=99).select("action", "is_init", "collector"))
    buffer.empty()
    buffer.extend(steps()[:9])
    buffer.extend(rows)  # over the first of them
    found = read_back(to_minari(buffer, "demo/out-v0", root=tmp_path), tmp_path / "r")
    check_same(found[-16:], rows)


def test_pieces_of_batches_are_joined(tmp_path):
    rows = steps()
    batches = [rows[:4], rows[4:11], rows[11:]]
    check_same(read_back(to_minari(batches, "demo/out-v0", root=tmp_path), tmp_path / "r"), rows)


def test_steps_that_are_missing_between_batches_are_refused(tmp_path):
    rows = steps()
    with pytest.raises(ValueError, match=r"steps of trajectory .* are missing between batches"):
        to_minari([rows[:3], rows[4:]], "demo/out-v0", root=tmp_path)
    assert not list(tmp_path.iterdir()) or not (tmp_path / "demo" / "out-v0").exists()


def test_minari_reads_what_was_written(tmp_path):
    rows = steps()
    spaces = {
        "observation_space": gymnasium.spaces.Dict(
            place=gymnasium.spaces.Box(-99, 99, (2,)),
            noise=gymnasium.spaces.Box(-9, 9, (4,), np.float64),
        ),
        "action_space": gymnasium.spaces.Box(0, 99, (1,), np.int64),
    }
    folder = to_minari(rows, "demo/out-v0", root=tmp_path, metadata={"author": ["me"]}, **spaces)
    dataset = MinariDataset(folder / "data")
    assert (dataset.total_episodes, dataset.total_steps) == (3, 16)
    assert dataset.observation_space == spaces["observation_space"]
    assert dataset.action_space == spaces["action_space"]
    begin = 0
    for episode, count in zip(dataset, LENGTHS, strict=True):
        part = rows[begin : begin + count]
        begin += count
        seen = episode.observations["noise"]
        assert np.array_equal(seen[:-1], part["observation", "noise"])
        assert np.array_equal(seen[1:], part["next", "observation", "noise"])
        assert np.array_equal(episode.actions, part["action"])
        assert np.array_equal(episode.rewards, part["next", "reward"].squeeze(-1))


def test_a_missing_next_observation_is_refused_or_its_step_left_out(tmp_path):
    rows = steps()
    missing = torch.zeros(16, dtype=torch.bool)
    missing[7] = True
    rows["collector", "next_missing"] = missing
    with pytest.raises(ValueError, match="trajectory 1: the next observation of 1 rows is missing"):
        to_minari(rows, "demo/out-v0", root=tmp_path)
    folder = to_minari(rows, "demo/out-v0", root=tmp_path, drop_missing=True)
    kept = torch.arange(16) != 7
    found = read_back(folder, tmp_path / "r")
    assert (found["observation"] == rows[kept]["observation"]).all()
    assert (found["next", "observation"] == rows[kept]["next", "observation"]).all()


def test_rows_that_do_not_follow_each_other_are_refused(tmp_path):
    rows = steps()
    rows["next", "observation", "noise"][2, 1] += 1
    with pytest.raises(ValueError, match=r"trajectory 0: next observations .* differ"):
        to_minari(rows, "demo/out-v0", root=tmp_path)
    assert not (tmp_path / "demo").exists() or not list((tmp_path / "demo").iterdir())


def test_leaves_without_a_place_are_left_out_with_a_warning(tmp_path):
    rows = steps()
    rows["log_prob"] = torch.zeros(16)
    with pytest.warns(UserWarning, match=r"\['log_prob'\] have no place"):
        to_minari(rows, "demo/out-v0", root=tmp_path)


def test_a_dataset_is_not_overwritten(tmp_path):
    to_minari(steps(), "demo/out-v0", root=tmp_path)
    with pytest.raises(FileExistsError, match="take another id"):
        to_minari(steps(), "demo/out-v0", root=tmp_path)


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
        to_minari(trajectories([3]), name, root=root, **more)
    assert not list(tmp_path.iterdir())

import h5py
import numpy as np
import pytest
import torch

from rl_datasets import D4RLExperienceReplay
from rl_datasets.testing import check_source
from rl_layout import check_layout

# five episodes: a terminal, a time-out, a terminal at once, a time-out, and the end of the file
LENGTHS = [4, 6, 1, 3, 5]
ENDS = ["terminals", "timeouts", "terminals", "timeouts", None]
N = sum(LENGTHS)
LASTS = np.cumsum(LENGTHS) - 1


def write(folder, *, skip=(), next_observations=False, **changed):
    """A file as D4RL's documentation describes it, and the next observations that were real."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    seen = rng.normal(size=(N, 3)).astype(np.float32)
    after = np.concatenate([seen[1:], rng.normal(size=(1, 3)).astype(np.float32)])
    after[LASTS] = rng.normal(size=(5, 3))
    arrays = {
        "observations": seen,
        "actions": rng.normal(size=(N, 2)).astype(np.float32),
        "rewards": rng.normal(size=N).astype(np.float32),
        "terminals": np.zeros(N, bool),
        "timeouts": np.zeros(N, bool),
        "infos/qpos": rng.normal(size=(N, 4)),
        "metadata/algorithm": np.bytes_("SAC"),
    }
    for last, end in zip(LASTS, ENDS, strict=True):
        if end:
            arrays[end][last] = True
    if next_observations:
        arrays["next_observations"] = after
    arrays |= changed
    with h5py.File(folder / "one.hdf5", "w") as file:
        for name, array in arrays.items():
            if name not in skip:
                file[name] = array
    return arrays, after


def opened(tmp_path, **options):
    return D4RLExperienceReplay(
        "hopper-medium-v2", path=tmp_path / "files", root=tmp_path / "r", verbose=False, **options
    )


def test_every_transition_is_that_of_the_file(tmp_path):
    arrays, _ = write(tmp_path / "files")
    data = opened(tmp_path)
    check_source(lambda: data.source(tmp_path / "files"))
    rows = data[:]
    assert np.array_equal(rows["observation"], arrays["observations"])
    assert np.array_equal(rows["action"], arrays["actions"])
    assert np.array_equal(rows["info", "qpos"], arrays["infos/qpos"])
    for key, name in [
        ("reward", "rewards"),
        ("terminated", "terminals"),
        ("truncated", "timeouts"),
    ]:
        assert np.array_equal(rows["next", key].squeeze(-1), arrays[name])
    assert rows["episode"].tolist() == np.repeat(range(5), LENGTHS).tolist()
    assert not check_layout(rows).findings
    report = data.report
    assert (report.terminated, report.truncated, report.cut, report.next_missing) == (2, 2, 1, 5)
    assert data.metadata == {"metadata/algorithm": "SAC"}


def test_next_observations_that_are_not_in_the_file_are_marked_never_zeroed(tmp_path):
    arrays, _ = write(tmp_path / "files")
    rows = opened(tmp_path)[:]
    missing = rows["collector", "next_missing"]
    assert missing.nonzero().flatten().tolist() == LASTS.tolist()
    inside = ~missing.numpy()
    after = rows["next", "observation"].numpy()
    assert np.array_equal(after[inside], arrays["observations"][1:][inside[:-1]])
    assert np.isnan(after[~inside]).all()


def test_next_observations_of_the_file_are_taken_to_the_last(tmp_path):
    _, after = write(tmp_path / "files", next_observations=True)
    data = opened(tmp_path)
    assert np.array_equal(data[:]["next", "observation"], after)
    assert data.report.next_missing == 0
    # the last episode is cut by the end of the file
    assert data[:]["is_init"].squeeze(-1).nonzero().flatten().tolist() == [0, *(LASTS[:-1] + 1)]


def test_ends_without_a_flag_are_found_by_next_observations(tmp_path):
    _, after = write(tmp_path / "files", next_observations=True, skip=["timeouts"])
    data = opened(tmp_path)
    assert np.array_equal(data[:]["next", "observation"], after)
    assert (data.report.trajectories, data.report.cut) == (5, 3)
    assert "2 rows end an episode without a flag" in data.report.assumptions[0]


@pytest.mark.parametrize("kind", [int, np.int64])
def test_without_timeouts_the_horizon_decides(tmp_path, kind):
    write(tmp_path / "files", skip=["timeouts"])
    data = opened(tmp_path, horizon=kind(3))
    # 4: a time-out after 3; 6 and 1 up to the next terminal: 3, 3, 1; 3 and 5: 3, 3, 2
    assert data[:]["next", "truncated"].squeeze(-1).nonzero().flatten().tolist() == [
        2,
        6,
        9,
        13,
        16,
    ]
    assert data.report.assumptions == ["an episode of 3 steps timed out: no `timeouts`"]
    assert "only terminals end" in opened(tmp_path).report.assumptions[0]


def test_timeouts_may_only_cut(tmp_path):
    write(tmp_path / "files")
    data = opened(tmp_path, use_truncated_as_done=False)
    assert not data[:]["next", "truncated"].any()
    assert (data.report.cut, data.report.trajectories) == (3, 5)


def test_last_rows_of_timeouts_may_be_left_out(tmp_path):
    arrays, _ = write(tmp_path / "files")
    data = opened(tmp_path, terminate_on_end=False)
    rows, kept = data[:], np.setdiff1d(np.arange(N), LASTS[[1, 3]])
    assert np.array_equal(rows["action"], arrays["actions"][kept])
    # the observation of the row that is gone is the last one
    assert torch.equal(
        rows["next", "observation"][8], torch.from_numpy(arrays["observations"][LASTS[1]])
    )


def test_columns_of_different_lengths_are_refused(tmp_path):
    write(tmp_path / "files", actions=np.zeros((7, 2)))
    with pytest.raises(ValueError, match=rf"'action' has 7 rows, 'rewards' has {N}"):
        opened(tmp_path)


def test_a_file_without_rewards_is_refused(tmp_path):
    write(tmp_path / "files", skip=["rewards"])
    with pytest.raises(ValueError, match="there is no column 'rewards'"):
        opened(tmp_path)


def test_a_file_that_was_cut_short_is_refused(tmp_path):
    write(tmp_path / "files")
    path = tmp_path / "files" / "one.hdf5"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(ValueError, match=r"one\.hdf5.*ends too early.*3000 bytes"):
        opened(tmp_path)


def test_arguments_that_exclude_each_other_are_refused(tmp_path):
    for options, message in [
        ({"from_env": True, "direct_download": True}, "exclude each other"),
        ({"from_env": True}, "leave it out"),
        ({"direct_download": False}, "download=False"),
    ]:
        with pytest.raises(ValueError, match=message):
            opened(tmp_path, **options)


def test_an_unknown_id_names_the_closest():
    with pytest.raises(ValueError, match="did you mean 'hopper-medium-v2'"):
        D4RLExperienceReplay("hoper-medium-v2")


def test_slices_longer_than_every_trajectory_are_refused(tmp_path):
    write(tmp_path / "files")
    with pytest.raises(ValueError, match=r"slice_len is 99, but the longest .* has 6 steps"):
        opened(tmp_path, slice_len=99)

import numpy as np
import pytest

from rl_datasets import OGBenchExperienceReplay
from rl_datasets.testing import check_source
from rl_layout import check_layout

LENGTHS = [4, 1, 6]  # steps


def write(folder, **changed):
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    rows = sum(LENGTHS) + len(LENGTHS)
    arrays = {
        "observations": rng.normal(size=(rows, 3)).astype(np.float32),
        "actions": rng.normal(size=(rows, 2)).astype(np.float32),
        "terminals": np.zeros(rows, np.float32),
        "qpos": rng.normal(size=(rows, 5)),
    }
    arrays["terminals"][np.cumsum(np.array(LENGTHS) + 1) - 1] = 1
    arrays |= changed
    np.savez_compressed(folder / "maze-v0.npz", **arrays)
    return arrays


def opened(tmp_path, **options):
    return OGBenchExperienceReplay(
        "maze-v0", path=tmp_path / "files", root=tmp_path / "r", verbose=False, **options
    )


def test_a_row_of_the_end_is_the_last_next_observation(tmp_path):
    arrays = write(tmp_path / "files")
    data = opened(tmp_path)
    check_source(lambda: data.source(tmp_path / "files"))
    rows = data[:]
    real = np.flatnonzero(arrays["terminals"] == 0)
    assert np.array_equal(rows["observation"], arrays["observations"][real])
    assert np.array_equal(rows["action"], arrays["actions"][real])
    assert np.array_equal(rows["next", "observation"], arrays["observations"][real + 1])
    assert np.array_equal(rows["next", "info", "qpos"], arrays["qpos"][real + 1])
    assert not check_layout(rows).findings


def test_the_end_of_the_data_is_no_end_of_the_task(tmp_path):
    write(tmp_path / "files")
    data = opened(tmp_path, batch_size=4, slice_len=4)
    assert not data[:]["next", "done"].any()
    assert (data.report.cut, data.report.terminated, data.report.truncated) == (3, 0, 0)
    assert "not of the task" in data.report.assumptions[0]
    assert ("next", "reward") not in data[:].keys(True)
    sample = data.sample()  # a slice ends where a trajectory does at the latest
    assert sample["collector", "traj_ids"].unique().numel() == 1
    assert sample["next", "truncated"][-1]


def test_validation_data_are_another_dataset(tmp_path):
    with pytest.raises(FileNotFoundError, match="'maze-v0-val' is not in"):
        OGBenchExperienceReplay("maze-v0", split="val", root=tmp_path, download=False)


def test_columns_of_different_lengths_are_refused(tmp_path):
    write(tmp_path / "files", actions=np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"'actions' has 2 rows, 'terminals' has 14"):
        opened(tmp_path)


def test_slices_longer_than_every_trajectory_are_refused(tmp_path):
    write(tmp_path / "files")
    with pytest.raises(ValueError, match=r"slice_len is 99, but the longest .* has 6 steps"):
        opened(tmp_path, slice_len=99)


def test_a_file_that_was_cut_short_is_refused(tmp_path):
    write(tmp_path / "files")
    path = tmp_path / "files" / "maze-v0.npz"
    half = path.stat().st_size // 2
    path.write_bytes(path.read_bytes()[:half])
    with pytest.raises(ValueError, match=rf"maze-v0\.npz .*ends too early, after byte {half}"):
        opened(tmp_path)

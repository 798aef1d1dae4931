import h5py
import numpy as np
import pytest

from rl_datasets import RobosetExperienceReplay
from rl_datasets.testing import check_source
from rl_layout import check_layout

LENGTHS = [4, 3, 5]


def write(folder):
    """Trials of two seeds; the tenth comes after the ninth, not after the first."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    made = []
    for seed in range(2):
        with h5py.File(folder / f"seed_{seed}.h5", "w") as file:
            for number, steps in zip([1, 2, 10], LENGTHS, strict=True):
                arrays = {
                    "observations": rng.normal(size=(steps, 3)),
                    "actions": rng.normal(size=(steps, 2)),
                    "rewards": rng.normal(size=steps),
                    "done": np.arange(steps) == steps - 1,
                    "env_infos/time": np.arange(steps) / 10.0,
                    "env_infos/obs_dict/qp": rng.normal(size=(steps, 4)),
                    "config": np.bytes_("{}"),
                }
                for name, array in arrays.items():
                    file[f"Trial{number}/{name}"] = array
                made.append(arrays)
    return made


def opened(tmp_path, **options):
    options |= {"path": tmp_path / "files", "root": tmp_path / "r", "verbose": False}
    return RobosetExperienceReplay("DAPG(expert)/door_v2d-v1", **options)


def test_every_row_is_that_of_the_file_and_last_observations_are_missing(tmp_path):
    made = write(tmp_path / "files")
    data = opened(tmp_path)
    check_source(lambda: data.source(tmp_path / "files"))
    rows = data[:]
    for key, name in [
        ("observation", "observations"),
        ("action", "actions"),
        (("info", "time"), "env_infos/time"),
        (("info", "obs_dict", "qp"), "env_infos/obs_dict/qp"),
    ]:
        assert np.array_equal(rows[key], np.concatenate([one[name] for one in made]))
    lasts = np.cumsum(LENGTHS * 2) - 1
    assert rows["collector", "next_missing"].nonzero().flatten().tolist() == lasts.tolist()
    inside = np.setdiff1d(np.arange(len(rows)), lasts)
    assert np.array_equal(rows["next", "observation"][inside], rows["observation"][inside + 1])
    assert rows["next", "truncated"].squeeze(-1).nonzero().flatten().tolist() == lasts.tolist()
    assert not rows["next", "terminated"].any()
    assert rows["seed"].tolist() == [0] * 12 + [1] * 12
    assert rows["episode"].unique().tolist() == list(range(6))
    assert not check_layout(rows).findings
    assert "taken for truncated" in data.report.assumptions[0]
    assert list(data.report.left_out) == ["config"]


def test_columns_of_different_lengths_are_refused(tmp_path):
    write(tmp_path / "files")
    with h5py.File(tmp_path / "files" / "seed_1.h5", "a") as file:
        del file["Trial2/actions"]
        file["Trial2/actions"] = np.zeros((9, 2))
    with pytest.raises(ValueError, match=r"seed_1\.h5, Trial2: column \('action',\) has 9 rows"):
        opened(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no \.h5 files"):
        RobosetExperienceReplay("x", path=tmp_path / "r", root=tmp_path / "r2")


def test_slices_longer_than_every_trajectory_are_refused(tmp_path):
    write(tmp_path / "files")
    with pytest.raises(ValueError, match=r"slice_len is 99, but the longest .* has 5 steps"):
        opened(tmp_path, slice_len=99)


def test_a_file_that_was_cut_short_is_refused(tmp_path):
    write(tmp_path / "files")
    path = tmp_path / "files" / "seed_1.h5"
    half = path.stat().st_size // 2
    path.write_bytes(path.read_bytes()[:half])
    with pytest.raises(ValueError, match=rf"seed_1\.h5.*ends too early.*{half} bytes"):
        opened(tmp_path)
    assert not list((tmp_path / "r").rglob("converting"))

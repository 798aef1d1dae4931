import h5py
import numpy as np
import pytest
import torch

from rl_datasets import VD4RLExperienceReplay
from rl_datasets.testing import check_source
from rl_layout import check_layout

LENGTHS = [5, 3, 4]  # steps, a row less than there are frames


def write(folder, kind):
    """Episodes as the dataset has them: action and reward of a row led to its frame."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    shape = (64, 64, 3) if kind == "npz" else (3, 84, 84)
    made = []
    for number, steps in enumerate(LENGTHS):
        rows = {
            "image": rng.integers(0, 256, (steps + 1, *shape), dtype=np.uint8),
            "action": rng.normal(size=(steps + 1, 2)).astype(np.float32),
            "reward": rng.normal(size=steps + 1).astype(np.float32),
            "discount": np.ones(steps + 1, np.float32),
        }
        if number == 1:
            rows["discount"][-1] = 0  # the task ended
        made.append(rows)
        if kind == "npz":
            flags = {
                "is_first": np.arange(steps + 1) == 0,
                "is_last": np.arange(steps + 1) == steps,
            }
            flags["is_terminal"] = flags["is_last"] & (number == 1)
            np.savez_compressed(folder / f"{number}.npz", **rows, **flags)
    if kind == "hdf5":
        with h5py.File(folder / "shard.hdf5", "w") as file:
            for name in ("action", "reward", "discount"):
                file[name] = np.concatenate([rows[name] for rows in made])
            file["observation"] = np.concatenate([rows["image"] for rows in made])
            kinds = [np.r_[0, np.ones(steps - 1), 2] for steps in LENGTHS]
            file["step_type"] = np.concatenate(kinds).astype(np.int64)
    return made


def opened(tmp_path, **options):
    return VD4RLExperienceReplay(
        "main/walker_walk/random/64px",
        path=tmp_path / "files",
        root=tmp_path / "r",
        verbose=False,
        **options,
    )


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_rewards_and_actions_are_not_shifted(tmp_path, kind):
    made = write(tmp_path / "files", kind)
    data = opened(tmp_path, totensor=False)
    check_source(lambda: data.source(tmp_path / "files"))
    rows, row = data[:], 0
    for episode, steps in zip(made, LENGTHS, strict=True):
        for t in range(1, steps + 1):
            one = rows[row]
            assert np.array_equal(one["pixels"], episode["image"][t - 1])
            assert np.array_equal(one["action"], episode["action"][t])
            assert float(one["next", "reward"]) == episode["reward"][t]
            assert np.array_equal(one["next", "pixels"], episode["image"][t])
            assert float(one["next", "discount"]) == episode["discount"][t]
            row += 1
    assert row == len(rows)
    assert rows["next", "terminated"].squeeze(-1).nonzero().flatten().tolist() == [7]
    assert rows["next", "truncated"].squeeze(-1).nonzero().flatten().tolist() == [4, 11]
    assert data.report.next_missing == 0
    assert not check_layout(rows).findings


@pytest.mark.parametrize(("kind", "size"), [("npz", 64), ("hdf5", 84)])
def test_samples_are_images_of_any_size(tmp_path, kind, size):
    write(tmp_path / "files", kind)
    pixels = opened(tmp_path, batch_size=4).sample()["next", "pixels"]
    assert (pixels.shape, pixels.dtype) == ((4, 3, size, size), torch.float32)
    assert pixels.min() >= 0
    assert 0.9 < pixels.max() <= 1
    small = opened(tmp_path, batch_size=4, image_size=(32, 16), transform=lambda rows: rows)
    assert small.sample()["pixels"].shape == (4, 3, 16, 32)


def test_damaged_and_uneven_files_are_refused(tmp_path):
    write(tmp_path / "files", "npz")
    path = tmp_path / "files" / "1.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=rf"1\.npz .*after byte {len(whole) // 2}"):
        opened(tmp_path)
    zeros = np.zeros(3)
    np.savez(path, image=zeros, action=zeros[:2], reward=zeros, discount=zeros)
    with pytest.raises(ValueError, match=r"1\.npz: column 'action' has 2 rows, 'reward' has 3"):
        opened(tmp_path)
    np.savez(path, image=np.array([{}] * 3), action=zeros, reward=zeros, discount=zeros)
    with pytest.raises(ValueError, match="holds object"):
        opened(tmp_path)
    (tmp_path / "files" / "a.hdf5").touch()
    with pytest.raises(ValueError, match=r"has \.npz and \.hdf5 files"):
        opened(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no \.npz and no \.hdf5"):
        VD4RLExperienceReplay("x", path=tmp_path / "r", root=tmp_path / "r2")


@pytest.mark.parametrize(
    ("size", "error"), [("ab", TypeError), ((1.5, 2), TypeError), ((), ValueError), (0, ValueError)]
)
def test_sizes_that_are_none_are_named(tmp_path, size, error):
    with pytest.raises(error, match="image_size: expected"):
        VD4RLExperienceReplay("main/walker_walk/random/64px", root=tmp_path, image_size=size)


def test_slices_longer_than_every_trajectory_are_refused(tmp_path):
    write(tmp_path / "files", "npz")
    with pytest.raises(ValueError, match=r"slice_len is 99, but the longest .* has 5 steps"):
        opened(tmp_path, totensor=False, slice_len=99)


def test_damaged_and_uneven_files_of_84_pixels_are_refused(tmp_path):
    write(tmp_path / "files", "hdf5")
    path = tmp_path / "files" / "shard.hdf5"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    half = len(whole) // 2
    with pytest.raises(ValueError, match=rf"shard\.hdf5.*ends too early.*{half} bytes"):
        opened(tmp_path)
    path.write_bytes(whole)
    with h5py.File(path, "a") as file:
        del file["action"]
        file["action"] = np.zeros((2, 2))
    with pytest.raises(ValueError, match=r"column 'action' has 2 rows, 'step_type' has 15"):
        opened(tmp_path)

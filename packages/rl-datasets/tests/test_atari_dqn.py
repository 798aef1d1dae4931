import gzip
import io

import numpy as np
import pytest

from rl_datasets import AtariDQNExperienceReplay
from rl_datasets import atari_dqn as module
from rl_datasets.testing import check_source
from rl_layout import check_layout

ROWS = 11


def write(folder, shards, *, added=None, skip=()):
    """Shards as the dataset has them; returns the arrays of all of them, end to end."""
    rng = np.random.default_rng(0)
    logs = folder / "Pong" / "5" / "replay_logs"
    logs.mkdir(parents=True)
    made = []
    for number, terminals in shards.items():
        arrays = {
            "observation": rng.integers(0, 256, (ROWS, 84, 84), dtype=np.uint8),
            "action": rng.integers(0, 6, ROWS, dtype=np.int32),
            "reward": rng.normal(size=ROWS).astype(np.float32),
            "terminal": np.isin(np.arange(ROWS), terminals).astype(np.uint8),
        }
        made.append(arrays)
        for name, array in arrays.items():
            if name not in skip:
                save(logs / f"$store$_{name}_ckpt.{number}.gz", array)
        if added is not None:
            save(logs / f"add_count_ckpt.{number}.gz", np.array(added))
    return {name: np.concatenate([one[name] for one in made]) for name in made[0]}


def save(path, array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    path.write_bytes(gzip.compress(buffer.getvalue()))


def opened(tmp_path, **options):
    return AtariDQNExperienceReplay(
        "Pong/5", path=tmp_path / "files", root=tmp_path / "r", verbose=False, **options
    )


@pytest.mark.parametrize("block", [8, 24, 16_384])
def test_every_row_is_that_of_the_files_also_over_shards(tmp_path, monkeypatch, block):
    monkeypatch.setattr(module, "BLOCK_ROWS", block)  # episodes over blocks as well
    arrays = write(tmp_path / "files", {0: [3, 7], 1: [0, 8], 4: [5]})
    data = opened(tmp_path)
    check_source(lambda: data.source(tmp_path / "files"))
    rows = data[:]
    assert np.array_equal(rows["observation"], arrays["observation"])
    assert np.array_equal(rows["action"], arrays["action"])
    assert np.array_equal(rows["next", "reward"].squeeze(-1), arrays["reward"])
    assert np.array_equal(rows["next", "terminated"].squeeze(-1), arrays["terminal"])
    # after terminals, after shard 1 which none follows, and after the last row
    missing = rows["collector", "next_missing"].nonzero().flatten().tolist()
    assert missing == [3, 7, 11, 19, 21, 27, 32]
    inside = np.setdiff1d(np.arange(3 * ROWS), missing)
    assert np.array_equal(rows["next", "observation"][inside], arrays["observation"][inside + 1])
    assert rows["is_init"].squeeze(-1).nonzero().flatten().tolist() == [0, 4, 8, 12, 20, 22, 28]
    assert not check_layout(rows).findings
    assert (data.report.terminated, data.report.cut) == (5, 2)


def test_rows_that_were_never_written_are_left_out(tmp_path):
    write(tmp_path / "files", {0: [3]}, added=6)
    assert len(opened(tmp_path)) == 6


def test_the_seam_of_a_full_ring_cuts(tmp_path):
    write(tmp_path / "files", {0: [8]}, added=2 * ROWS + 5)
    starts = opened(tmp_path)[:]["is_init"].squeeze(-1).nonzero().flatten().tolist()
    assert starts == [0, 5, 9]


def test_slices_are_drawn_of_whole_trajectories(tmp_path):
    write(tmp_path / "files", {0: [3, 7]})
    sample = opened(tmp_path, batch_size=8, slice_len=4).sample()
    assert sample["collector", "traj_step"].reshape(2, 4).diff(dim=1).eq(1).all()


def test_a_file_that_was_cut_short_is_refused_with_file_and_byte(tmp_path):
    write(tmp_path / "files", {0: [3]})
    path = next((tmp_path / "files").rglob("*observation*"))
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(ValueError, match=r"observation_ckpt\.0\.gz ends too early.* byte \d+"):
        opened(tmp_path)


def test_files_that_hold_objects_are_refused(tmp_path):
    write(tmp_path / "files", {0: [3]})
    path = next((tmp_path / "files").rglob("*action*"))
    save(path, np.array([{}] * ROWS, dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="holds object"):
        opened(tmp_path)


def test_columns_that_are_missing_or_shorter_are_refused(tmp_path):
    write(tmp_path / "files", {0: [3]}, skip=["reward"])
    with pytest.raises(FileNotFoundError, match=r"reward_ckpt\.0\.gz is missing"):
        opened(tmp_path)
    logs = next((tmp_path / "files").rglob("*action*")).parent
    save(logs / "$store$_reward_ckpt.0.gz", np.zeros(4, np.float32))
    with pytest.raises(ValueError, match=r"'reward': 4"):
        opened(tmp_path)


def test_a_bucket_that_is_gone_says_so_and_where_copies_are(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"bucket of the dataset is gone.*RL Unplugged"):
        AtariDQNExperienceReplay("Pong/5", root=tmp_path)
    with pytest.raises(ValueError, match="did you mean 'Pong/5'"):
        AtariDQNExperienceReplay("Pong/6", root=tmp_path)


def test_slices_longer_than_every_trajectory_are_refused(tmp_path):
    write(tmp_path / "files", {0: [3, 7]})
    with pytest.raises(ValueError, match=r"slice_len is 99, but the longest .* has 4 steps"):
        opened(tmp_path, slice_len=99)

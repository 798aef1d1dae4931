import io
import os
import tarfile

import numpy as np
import pytest

from rl_datasets import GenDGRLExperienceReplay, GenDGRLSource
from rl_datasets.testing import check_source
from rl_layout import check_layout

LENGTHS = [4, 1, 6]


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch /tmp/rl-datasets-was-here",)


def write(folder, *, extra=(), compression="xz"):
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    with tarfile.open(folder / "bigfish.tar.xz", f"w:{compression}") as archive:
        for number, steps in enumerate(LENGTHS):
            arrays = {
                "observations": rng.integers(0, 256, (steps + 1, 3, 64, 64), dtype=np.uint8),
                "actions": rng.integers(0, 15, (steps, 1)),
                "rewards": rng.normal(size=(steps, 1)).astype(np.float32),
                "dones": (np.arange(steps) == steps - 1)[:, None],
            }
            made.append(arrays)
            add(archive, f"bigfish/{number}.npy", arrays)
        for name, content in extra:
            add(archive, name, content)
    return made


def add(archive, name, content):
    buffer = io.BytesIO()
    np.save(buffer, content, allow_pickle=True)
    info = tarfile.TarInfo(name)
    info.size = buffer.tell()
    buffer.seek(0)
    archive.addfile(info, buffer)


def opened(tmp_path, **options):
    options |= {"path": tmp_path / "files", "root": tmp_path / "r", "verbose": False}
    return GenDGRLExperienceReplay("bigfish-1M_E", **options)


def test_every_transition_is_that_of_the_archive(tmp_path):
    made = write(tmp_path / "files")
    data = opened(tmp_path)
    check_source(lambda: data.source(tmp_path / "files"))
    rows = data[:]
    for key, name, part in [
        ("observation", "observations", slice(-1)),
        (("next", "observation"), "observations", slice(1, None)),
        ("action", "actions", slice(None)),
        (("next", "reward"), "rewards", slice(None)),
        (("next", "terminated"), "dones", slice(None)),
    ]:
        assert np.array_equal(rows[key], np.concatenate([one[name][part] for one in made]))
    assert data.report.next_missing == 0
    assert not check_layout(rows).findings


def test_loose_files_are_read_too(tmp_path):
    made = write(tmp_path / "files")
    with tarfile.open(tmp_path / "files" / "bigfish.tar.xz") as archive:
        archive.extractall(tmp_path / "files", filter="data")
    (tmp_path / "files" / "bigfish.tar.xz").unlink()
    rows = opened(tmp_path)[:]
    assert np.array_equal(rows["action"], np.concatenate([one["actions"] for one in made]))


def test_a_pickle_that_wants_code_is_refused_and_runs_nothing(tmp_path):
    write(tmp_path / "files", extra=[("evil.npy", np.array({"observations": Evil()}))])
    with pytest.raises(ValueError, match=r"evil\.npy .*wants \w+\.system.*refused"):
        opened(tmp_path)
    assert not os.path.exists("/tmp/rl-datasets-was-here")


def test_names_that_lead_out_of_the_archive_are_refused(tmp_path):
    write(tmp_path / "files", extra=[("../../out.npy", {})])
    with pytest.raises(ValueError, match="leads out"):
        opened(tmp_path)


def test_a_dict_without_a_column_is_refused(tmp_path):
    write(tmp_path / "files", extra=[("bad.npy", {"observations": np.zeros(2)})])
    with pytest.raises(ValueError, match=r"bad\.npy has no \['actions', 'dones', 'rewards'\]"):
        opened(tmp_path)


def test_an_archive_that_was_cut_short_is_refused(tmp_path):
    write(tmp_path / "files")
    path = tmp_path / "files" / "bigfish.tar.xz"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    half = len(whole) // 2
    with pytest.raises(ValueError, match=rf"too early.* before byte {half} .* has {half} bytes"):
        opened(tmp_path)


def test_an_archive_that_is_damaged_inside_is_refused(tmp_path):
    write(tmp_path / "files")
    path = tmp_path / "files" / "bigfish.tar.xz"
    whole = bytearray(path.read_bytes())
    whole[-400:-300] = bytes(100)
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"damaged, or ends too early, after \d+ episodes"):
        opened(tmp_path)


def test_an_archive_is_unpacked_once(tmp_path):
    write(tmp_path / "files")
    source = GenDGRLSource(tmp_path / "files")
    assert sum(LENGTHS) <= source.steps < 2 * sum(LENGTHS) + 8  # without reading all of it
    assert len(opened(tmp_path)) == sum(LENGTHS)


def test_an_unknown_id_names_the_closest():
    with pytest.raises(ValueError, match="among 128: did you mean 'bigfish-1M_E'"):
        GenDGRLExperienceReplay("bigfsh-1M_E")


def test_slices_longer_than_every_trajectory_are_refused(tmp_path):
    write(tmp_path / "files")
    with pytest.raises(ValueError, match=r"slice_len is 99, but the longest .* has 6 steps"):
        opened(tmp_path, slice_len=99)


def test_columns_of_different_lengths_are_refused_and_nothing_is_left(tmp_path):
    bad = {
        "observations": np.zeros((4, 3, 64, 64), np.uint8),
        "actions": np.zeros((2, 1)),
        "rewards": np.zeros((3, 1), np.float32),
        "dones": np.zeros((3, 1), bool),
    }
    write(tmp_path / "files", extra=[("bad.npy", bad)])
    with pytest.raises(ValueError, match=r"bad\.npy: column \('action',\) has 2 rows,.* has 3"):
        opened(tmp_path)
    assert not list((tmp_path / "r").rglob("converting"))

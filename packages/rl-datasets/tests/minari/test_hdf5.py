import io
import json

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from rl_datasets import MinariExperienceReplay, MinariHDF5Source
from rl_datasets.testing import check_source
from rl_layout import check_layout

LENGTHS = (5, 3, 7)
SPACE = {
    "type": "Dict",
    "subspaces": {
        "arm": {"type": "Box", "dtype": "float32", "shape": [3], "low": [], "high": []},
        "pair": {
            "type": "Tuple",
            "subspaces": [
                {"type": "Discrete", "dtype": "int64", "start": 0, "n": 5},
                {"type": "Text", "max_length": 9, "min_length": 0, "charset": "abc"},
            ],
        },
    },
}


def write_minari(folder, *, lengths=LENGTHS, seed=0, jpeg=False):
    """A dataset as Minari's documentation describes it; returns the arrays of each episode."""
    rng = np.random.default_rng(seed)
    (folder / "data").mkdir(parents=True)
    space, made = json.loads(json.dumps(SPACE)), []
    if jpeg:
        frame = {"type": "Box", "dtype": "uint8", "shape": [32, 40, 3]}
        bounds = [np.full((32, 40, 3), limit).tolist() for limit in (0, 255)]
        frame |= {"low": bounds[0], "high": bounds[1]}
        space["subspaces"]["frame"] = frame
    with h5py.File(folder / "data" / "main_data.hdf5", "w") as file:
        for number, steps in enumerate(lengths):
            last = np.arange(steps) == steps - 1
            arrays = {
                "observations/arm": rng.normal(size=(steps + 1, 3)).astype(np.float32),
                "observations/pair/_index_0": rng.integers(0, 5, steps + 1),
                "actions": rng.normal(size=(steps, 2)),
                "rewards": rng.normal(size=steps),
                "terminations": last & (number % 2 == 0),
                "truncations": last & (number % 2 == 1),
                "infos/n/z": rng.normal(size=(steps + 1, 2)),
            }
            group = file.create_group(f"episode_{number}")
            group.attrs["total_steps"] = steps
            for name, array in arrays.items():
                group.create_dataset(name, data=array)
            text = h5py.string_dtype("utf-8")
            group.create_dataset(
                "observations/pair/_index_1", data=["abc"] * (steps + 1), dtype=text
            )
            if jpeg:
                frames = rng.integers(0, 256, (steps + 1, 32, 40, 3), dtype=np.uint8)
                coded = [np.frombuffer(as_jpeg(one), np.uint8) for one in frames]
                kind = h5py.vlen_dtype(np.uint8)
                column = group.create_dataset("observations/frame", (steps + 1,), dtype=kind)
                for place, one in enumerate(coded):
                    column[place] = one
                arrays["frames"] = np.stack([Image.open(io.BytesIO(one)) for one in coded])
            made.append(arrays)
    about = {
        "total_episodes": len(lengths),
        "total_steps": sum(lengths),
        "data_format": "hdf5",
        "jpeg_encoding": jpeg,
        "observation_space": json.dumps(space),
        "action_space": json.dumps({"type": "Box", "dtype": "float64", "shape": [2]}),
        "env_spec": "{}",
        "minari_version": "0.5.4",
    }
    (folder / "data" / "metadata.json").write_text(json.dumps(about))
    return made


def as_jpeg(frame):
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="JPEG")
    return buffer.getvalue()


@pytest.fixture
def opened(tmp_path):
    made = write_minari(tmp_path / "files")
    options = {"path": tmp_path / "files", "root": tmp_path / "root", "verbose": False}
    return MinariExperienceReplay("demo/one-v0", batch_size=6, **options), made


def test_every_transition_is_that_of_the_file_the_last_one_included(opened):
    data, made = opened
    rows, begin = data[:], 0
    assert not check_layout(rows).findings
    for number, arrays in enumerate(made):
        steps = len(arrays["rewards"])
        part = rows[begin : begin + steps]
        begin += steps
        for key, name in [
            (("observation", "arm"), "observations/arm"),
            (("observation", "pair", "_index_0"), "observations/pair/_index_0"),
            (("info", "n", "z"), "infos/n/z"),
        ]:
            assert np.array_equal(part[key], arrays[name][:-1])
            assert np.array_equal(part[("next", *key)], arrays[name][1:])
        assert np.array_equal(part["action"], arrays["actions"])
        for key, name in [
            ("reward", "rewards"),
            ("terminated", "terminations"),
            ("truncated", "truncations"),
        ]:
            assert np.array_equal(part["next", key].squeeze(-1), arrays[name])
        assert part["episode"].unique().tolist() == [number]
    assert begin == len(rows)
    assert ("collector", "next_missing") not in rows.keys(True)


def test_dtypes_are_those_of_the_file(opened):
    rows = opened[0][:]
    assert rows["observation", "arm"].dtype == torch.float32
    assert rows["next", "reward"].dtype == torch.float64


def test_the_report_says_what_is_left_out(opened):
    report = opened[0].report
    assert list(report.left_out) == ["observations/pair/_index_1"]
    assert (report.terminated, report.truncated, report.next_missing) == (2, 1, 0)
    assert opened[0].metadata["env_spec"] == "{}"


def test_jpeg_frames_are_decoded_and_reported_as_lossy(tmp_path):
    made = write_minari(tmp_path / "files", jpeg=True)
    data = MinariExperienceReplay(
        "demo/one-v0", path=tmp_path / "files", root=tmp_path / "root", verbose=False
    )
    frames = np.concatenate([arrays["frames"][1:] for arrays in made])
    assert np.array_equal(data[:]["next", "observation", "frame"], frames)
    assert list(data.report.lossy) == ["observation/frame"]


def test_a_file_that_was_cut_short_is_refused_with_file_and_bytes(tmp_path):
    write_minari(tmp_path / "files")
    path = tmp_path / "files" / "data" / "main_data.hdf5"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=rf"main_data\.hdf5.*ends too early.*{len(whole) // 2} b"):
        list(MinariHDF5Source(tmp_path / "files").episodes())


def test_an_episode_that_lacks_a_column_is_named(tmp_path):
    write_minari(tmp_path / "files")
    with h5py.File(tmp_path / "files" / "data" / "main_data.hdf5", "a") as file:
        del file["episode_2/actions"]
    with pytest.raises(ValueError, match="episode_2"):
        list(MinariHDF5Source(tmp_path / "files").episodes())


def test_columns_of_different_length_are_refused(tmp_path):
    write_minari(tmp_path / "files")
    with h5py.File(tmp_path / "files" / "data" / "main_data.hdf5", "a") as file:
        del file["episode_1/actions"]
        file["episode_1/actions"] = np.zeros((9, 2))
    with pytest.raises(ValueError, match=r"episode_1: column \('action',\) has 9 rows.* has 3"):
        list(MinariHDF5Source(tmp_path / "files").episodes())


@pytest.mark.parametrize("text", ["{", "[]", '{"total_steps": 3}'])
def test_metadata_that_describe_nothing_are_refused(tmp_path, text):
    write_minari(tmp_path / "files")
    (tmp_path / "files" / "data" / "metadata.json").write_text(text)
    with pytest.raises(ValueError, match=r"metadata\.json does not describe"):
        MinariHDF5Source(tmp_path / "files")


def test_local_files_of_minari_are_found(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    write_minari(tmp_path / "minari" / "demo" / "one-v0")
    options = {"load_from_local_minari": True, "root": tmp_path / "root", "verbose": False}
    data = MinariExperienceReplay("demo/one-v0", **options)
    assert len(data) == sum(LENGTHS)
    with pytest.raises(FileNotFoundError, match="'demo/two-v0' is not in"):
        MinariExperienceReplay("demo/two-v0", **options)
    with pytest.raises(ValueError, match="both say where"):
        MinariExperienceReplay("demo/one-v0", path=tmp_path, **options)
    with pytest.raises(ValueError, match='leave "force" out'):
        MinariExperienceReplay("demo/one-v0", download="force", **options)


def test_slices_longer_than_every_trajectory_are_refused(tmp_path):
    write_minari(tmp_path / "files")
    options = {"path": tmp_path / "files", "root": tmp_path / "r", "verbose": False}
    with pytest.raises(ValueError, match=r"slice_len is 99, but the longest .* has 7 steps"):
        MinariExperienceReplay("demo/one-v0", slice_len=99, **options)


def test_the_source_keeps_the_promises_of_sources(tmp_path):
    write_minari(tmp_path / "files")
    check_source(lambda: MinariHDF5Source(tmp_path / "files"))

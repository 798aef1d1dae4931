import io
import json
import struct

import numpy as np
import pytest
from PIL import Image

from rl_datasets import OpenXExperienceReplay
from rl_datasets.rlds.crc32c import masked_crc
from rl_datasets.testing import check_source
from rl_layout import check_layout

ROWS = [5, 2, 4]  # of which the last has an observation only
ENDED = [True, False, True]


def varint(value):
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values):
    if isinstance(values, list):
        return field(1, b"".join(field(1, value) for value in values))
    values = values.reshape(-1)
    if values.dtype.kind == "f":
        return field(2, field(1, values.astype("<f4").tobytes()))
    return field(3, field(1, b"".join(varint(int(value)) for value in values)))


def record(features):
    entries = [field(1, name.encode()) + field(2, feature(one)) for name, one in features.items()]
    content = field(1, b"".join(field(1, entry) for entry in entries))
    head = struct.pack("<Q", len(content))
    crcs = [struct.pack("<I", masked_crc(part)) for part in (head, content)]
    return head + crcs[0] + content + crcs[1]


def png(frame):
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="PNG")
    return buffer.getvalue()


def tensor(dtype, *shape):
    return {"tensor": {"shape": {"dimensions": [str(n) for n in shape]}, "dtype": dtype}}


def described():
    image = {"shape": {"dimensions": ["6", "4", "3"]}, "dtype": "uint8", "encodingFormat": "png"}
    observation = {"state": tensor("float32", 2), "image": {"image": image}}
    steps = {
        "observation": {"featuresDict": {"features": observation}},
        "action": tensor("float32", 3),
        "reward": tensor("float32"),
        "discount": tensor("float32"),
        "is_first": tensor("bool"),
        "is_last": tensor("bool"),
        "is_terminal": tensor("bool"),
        "language_instruction": {"text": {}},
    }
    inner = {"sequence": {"feature": {"featuresDict": {"features": steps}}}}
    return {"featuresDict": {"features": {"steps": inner}}}


def write(folder, **changed):
    """Records of two shards; returns the arrays of each episode."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    (folder / "features.json").write_text(json.dumps(described()))
    made, contents = [], []
    for number, rows in enumerate(ROWS):
        at = np.arange(rows)
        arrays = {
            "observation/state": rng.normal(size=(rows, 2)).astype(np.float32),
            "observation/image": rng.integers(0, 256, (rows, 6, 4, 3), dtype=np.uint8),
            "action": rng.normal(size=(rows, 3)).astype(np.float32),
            "reward": rng.normal(size=rows).astype(np.float32),
            "discount": np.ones(rows, np.float32),
            "is_first": at == 0,
            "is_last": at == rows - 1,
            "is_terminal": (at == rows - 1) & ENDED[number],
        }
        arrays |= changed
        made.append(arrays)
        features = {f"steps/{name}": one for name, one in arrays.items()}
        features["steps/observation/image"] = [png(one) for one in arrays["observation/image"]]
        features["steps/language_instruction"] = [[b"pick", b"place", b"pick"][number]] * rows
        contents.append(record(features))
    (folder / "set-train.tfrecord-00000-of-00002").write_bytes(contents[0] + contents[1])
    (folder / "set-train.tfrecord-00001-of-00002").write_bytes(contents[2])
    return made


def opened(tmp_path, **options):
    return OpenXExperienceReplay(
        "set/0.1.0", path=tmp_path / "files", root=tmp_path / "r", verbose=False, **options
    )


def joined(made, name, part):
    return np.concatenate([one[name][part] for one in made])


def test_every_transition_is_that_of_the_records(tmp_path):
    made = write(tmp_path / "files")
    data = opened(tmp_path)
    check_source(lambda: data.source(tmp_path / "files"))
    rows = data[:]
    for key, name in [
        (("observation", "state"), "observation/state"),
        (("observation", "image"), "observation/image"),
        ("action", "action"),
    ]:
        assert np.array_equal(rows[key], joined(made, name, slice(-1)))
        if key != "action":
            assert np.array_equal(rows[("next", *key)], joined(made, name, slice(1, None)))
    assert np.array_equal(rows["next", "reward"].squeeze(-1), joined(made, "reward", slice(-1)))
    ended = joined(made, "is_terminal", slice(1, None))
    assert np.array_equal(rows["next", "terminated"].squeeze(-1), ended)
    assert rows["next", "truncated"].squeeze(-1).nonzero().flatten().tolist() == [4]
    assert data.report.next_missing == 0
    assert not check_layout(rows).findings


def test_instructions_are_tasks(tmp_path):
    write(tmp_path / "files")
    data = opened(tmp_path)
    assert data.metadata["tasks"] == {"0": "pick", "1": "place"}
    assert data[:]["task_index"].tolist() == [0] * 4 + [1] + [0] * 3
    assert "language_instruction" in data.report.left_out


def test_last_actions_may_be_real(tmp_path):
    made = write(tmp_path / "files")
    data = opened(tmp_path, last_action=True)
    rows = data[:]
    assert np.array_equal(rows["action"], joined(made, "action", slice(None)))
    lasts = (np.cumsum(ROWS) - 1).tolist()
    assert rows["collector", "next_missing"].nonzero().flatten().tolist() == lasts
    assert (data.report.terminated, data.report.truncated) == (2, 1)
    assert "has an action" in data.report.assumptions[0]


def test_records_are_streamed(tmp_path):
    made = write(tmp_path / "files")
    data = opened(tmp_path, streaming=True, batch_size=4)
    rows = data.sample(timeout=60)
    data.close()
    assert not (tmp_path / "r").exists()
    for row in rows:
        arrays, step = made[int(row["episode"])], int(row["collector", "traj_step"])
        for key in ("state", "image"):
            column = arrays[f"observation/{key}"]
            assert np.array_equal(row["observation", key], column[step])
            assert np.array_equal(row["next", "observation", key], column[step + 1])
        assert np.array_equal(row["action"], arrays["action"][step])
    assert data.metadata["tasks"] == {"0": "pick", "1": "place"}


def test_columns_of_other_lengths_are_refused(tmp_path):
    write(tmp_path / "files", reward=np.zeros(9, np.float32))
    with pytest.raises(ValueError, match=r"column 'reward' has 9 values, expected 5 steps of \[\]"):
        opened(tmp_path)


def test_a_damaged_record_is_refused_when_it_is_read(tmp_path):
    write(tmp_path / "files")
    path = tmp_path / "files" / "set-train.tfrecord-00001-of-00002"
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"00001-of-00002.*(another checksum|damaged)"):
        opened(tmp_path)
    assert not (tmp_path / "r" / "openx" / "set" / "0.1.0" / "rows").exists()


def test_arguments_that_exclude_each_other_are_refused(tmp_path):
    write(tmp_path / "files")
    for options, message in [
        ({"shuffle": False, "slice_len": 2}, "leave slices and sampler out"),
        ({"shuffle": False, "streaming": True}, "leave shuffle out"),
        ({"pad": 0.0}, "pad_output=True"),
    ]:
        with pytest.raises(ValueError, match=message):
            opened(tmp_path, **options)
    ordered = opened(tmp_path, shuffle=False, batch_size=8).sample()
    assert ordered["index"].tolist() == list(range(8))


def test_other_splits_and_descriptions_are_refused(tmp_path):
    write(tmp_path / "files")
    with pytest.raises(FileNotFoundError, match=r"no \*-test\.tfrecord"):
        opened(tmp_path, split="test")
    (tmp_path / "files" / "features.json").write_text("{}")
    with pytest.raises(ValueError, match="does not describe steps"):
        opened(tmp_path)
    (tmp_path / "files" / "features.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"expected one features\.json"):
        opened(tmp_path)


def test_slices_longer_than_every_trajectory_are_refused(tmp_path):
    write(tmp_path / "files")
    with pytest.raises(ValueError, match=r"slice_len is 99, but the longest .* has 4 steps"):
        opened(tmp_path, slice_len=99)


def test_records_that_were_cut_short_are_refused_with_file_and_byte(tmp_path):
    write(tmp_path / "files")
    path = tmp_path / "files" / "set-train.tfrecord-00001-of-00002"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"00001-of-00002 .*ends too early: after byte 0 "):
        opened(tmp_path)

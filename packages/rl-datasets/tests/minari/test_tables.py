import gymnasium
import numpy as np
import pytest
from minari import create_dataset_from_buffers
from minari.data_collector import EpisodeBuffer

from rl_datasets import MinariExperienceReplay
from rl_datasets.testing import check_source
from rl_layout import check_layout

LENGTHS = [5, 3, 7]
SPACE = gymnasium.spaces.Dict(
    arm=gymnasium.spaces.Box(-9, 9, (3, 2)),
    pair=gymnasium.spaces.Tuple(
        [gymnasium.spaces.Discrete(5), gymnasium.spaces.MultiDiscrete([3, 4])]
    ),
    frame=gymnasium.spaces.Box(0, 255, (8, 6, 3), np.uint8),
)


def write(root, kind, monkeypatch):
    """A dataset that Minari itself writes; returns the arrays of each episode."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    rng = np.random.default_rng(0)
    made = []
    for number, steps in enumerate(LENGTHS):
        last = np.arange(steps) == steps - 1
        made.append(
            {
                "arm": rng.normal(size=(steps + 1, 3, 2)).astype(np.float32),
                "number": rng.integers(0, 5, steps + 1),
                "two": rng.integers(0, 3, (steps + 1, 2)),
                "frame": rng.integers(0, 256, (steps + 1, 8, 6, 3), dtype=np.uint8),
                "action": rng.normal(size=(steps, 2)),
                "reward": rng.normal(size=steps),
                "terminated": last & (number != 1),
                "truncated": last & (number == 1),
                "z": rng.normal(size=(steps + 1, 2)),
            }
        )
    buffers = [
        EpisodeBuffer(
            id=number,
            observations={
                "arm": one["arm"],
                "pair": (one["number"], one["two"]),
                "frame": one["frame"],
            },
            actions=one["action"],
            rewards=one["reward"].tolist(),
            terminations=one["terminated"].tolist(),
            truncations=one["truncated"].tolist(),
            infos={"n": {"z": one["z"]}, "count": np.arange(float(len(one["z"])))},
        )
        for number, one in enumerate(made)
    ]
    create_dataset_from_buffers(
        "demo/some-v0",
        buffers,
        observation_space=SPACE,
        action_space=gymnasium.spaces.Box(-9, 9, (2,), np.float64),
        data_format=kind,
        algorithm_name="none",
        author="me",
        author_email="me@here",
        code_permalink="none",
    )
    return made


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["hdf5", "arrow", "parquet"])
def test_every_transition_is_that_of_minari_in_each_of_its_formats(tmp_path, kind, monkeypatch):
    made = write(tmp_path / "minari", kind, monkeypatch)
    options = {"load_from_local_minari": True, "root": tmp_path / "r", "verbose": False}
    data = MinariExperienceReplay("demo/some-v0", **options)
    check_source(lambda: data.source(tmp_path / "minari" / "demo" / "some-v0"))
    rows = data[:]
    for key, name in [
        (("observation", "arm"), "arm"),
        (("observation", "pair", "_index_0"), "number"),
        (("observation", "pair", "_index_1"), "two"),
        (("observation", "frame"), "frame"),
        (("info", "n", "z"), "z"),
    ]:
        assert np.array_equal(rows[key], np.concatenate([one[name][:-1] for one in made]))
        after = np.concatenate([one[name][1:] for one in made])
        assert np.array_equal(rows[("next", *key)], after)
    for key in ["reward", "terminated", "truncated"]:
        found = rows["next", key].squeeze(-1)
        assert np.array_equal(found, np.concatenate([one[key] for one in made]))
    assert np.array_equal(rows["action"], np.concatenate([one["action"] for one in made]))
    assert rows["info", "count"].tolist() == rows["collector", "traj_step"].tolist()
    assert data.report.format == f"minari {kind}"
    assert data.report.next_missing == 0
    assert not check_layout(rows).findings


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_file_that_was_cut_short_is_refused(tmp_path, kind, monkeypatch):
    write(tmp_path / "minari", kind, monkeypatch)
    path = tmp_path / "minari" / "demo" / "some-v0" / "data" / "1" / f"part-0.{kind}"
    path.write_bytes(path.read_bytes()[:-40])
    options = {"load_from_local_minari": True, "root": tmp_path / "r", "verbose": False}
    with pytest.raises(ValueError, match=rf"1/part-0\.{kind} is damaged, or ends too early"):
        MinariExperienceReplay("demo/some-v0", **options)

import numpy as np
import pytest

from rl_datasets import Episode
from rl_datasets.testing import ListSource, toy_episodes

FLAGS = np.zeros(4, bool)
STEPS = {
    ("next", "reward"): np.ones(4),
    ("next", "terminated"): FLAGS,
    ("next", "truncated"): FLAGS,
}


def test_an_observation_more_than_steps_is_the_last_one():
    assert Episode({("observation",): np.zeros((5, 2))}, STEPS, "here").has_last
    assert not Episode({("observation",): np.zeros((4, 2))}, STEPS, "here").has_last


def test_columns_of_different_lengths_are_refused_with_both_lengths():
    columns = {**STEPS, ("action",): np.zeros(3)}
    with pytest.raises(ValueError, match=r"one file, episode 7.*'action'.* 3 rows.* has 4"):
        Episode({}, columns, "one file, episode 7")


@pytest.mark.parametrize("rows", [3, 6])
def test_observations_of_another_length_are_refused(rows):
    with pytest.raises(ValueError, match=rf"has {rows} rows for 4 steps: expected 5"):
        Episode({("observation",): np.zeros(rows)}, STEPS, "here")


def test_observations_with_and_without_a_last_one_are_refused():
    seen = {("a",): np.zeros(4), ("b",): np.zeros(5)}
    with pytest.raises(ValueError, match=r"the same for all observations; found \[4, 5\]"):
        Episode(seen, STEPS, "here")


def test_an_episode_without_flags_is_refused():
    columns = {key: column for key, column in STEPS.items() if key[1] != "terminated"}
    with pytest.raises(ValueError, match="there is no column"):
        Episode({}, columns, "here")


def test_a_fingerprint_differs_with_the_bytes_of_a_file(tmp_path):
    class OfFile(ListSource):
        files = (tmp_path / "one",)

    (tmp_path / "one").write_bytes(b"abc")
    former = OfFile(toy_episodes([2])).fingerprint()
    (tmp_path / "one").write_bytes(b"abcd")
    assert OfFile(toy_episodes([2])).fingerprint() != former


@pytest.mark.parametrize("name", ["observations", "columns"])
def test_arrays_without_keys_are_named(name):
    parts = {"observations": {}, "columns": {}, name: np.zeros(3)}
    with pytest.raises(TypeError, match=f"{name}: expected arrays by their keys, got a ndarray"):
        Episode(**parts, place="a file")

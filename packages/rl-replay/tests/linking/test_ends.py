"""Rows that end a trajectory and show what the row after them shows are warned of."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict

from rl_replay import (
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    LazyTensorStorage,
    TensorDictReplayBuffer,
    TensorStorage,
)

SAID = "rows that end a trajectory show under 'next' what the row after them shows"
STORAGES = {
    "memory": lambda **o: LazyTensorStorage(400, **o),
    "lossless": lambda **o: LazyTensorStorage(400, lossless=True, **o),
    "file": lambda **o: LazyMemmapStorage(400, **o),
}


def buffer(kind="memory", **options):
    return TensorDictReplayBuffer(storage=STORAGES[kind](**options), batch_size=4)


def rows(lengths, mistake):
    """Episodes end to end; a mistake puts the first observation of the next one in at the ends."""
    count, ends = sum(lengths), np.cumsum(lengths) - 1
    generator = np.random.default_rng(0)
    seen = generator.normal(size=(count + 1, 3)).astype(np.float32)
    after, over = seen[1:].copy(), np.zeros(count, bool)
    over[ends] = True
    if not mistake:
        after[ends] = generator.normal(size=(len(ends), 3))
    return {
        "observation": seen[:-1],
        "next": {
            "observation": after,
            "reward": np.ones(count, np.float32),
            "done": over,
            "terminated": over,
        },
    }


def row(batch, index):
    return {k: row(v, index) if isinstance(v, dict) else v[index] for k, v in batch.items()}


def one_by_one(into, batch):
    for index in range(len(batch["observation"])):
        into.add(row(batch, index))


def in_calls(into, batch):
    for start in range(0, len(batch["observation"]), 7):
        into.extend(row(batch, slice(start, start + 7)))


def at_once(into, batch):
    into.extend(batch)


@pytest.mark.parametrize("kind", STORAGES)
@pytest.mark.parametrize("write", [one_by_one, in_calls, at_once])
def test_observations_of_resets_are_said_once(write, kind):
    into = buffer(kind)
    with pytest.warns(UserWarning, match=SAID) as told:
        write(into, rows([7, 3, 5, 6, 4, 2, 9], mistake=True))
    assert [one.filename for one in told] == [__file__]
    assert f"of 6 {SAID}" in into.explain()


@pytest.mark.parametrize("write", [one_by_one, in_calls, at_once])
def test_final_observations_are_not(write):
    into = buffer()
    write(into, rows([7, 3, 5, 6, 4, 2, 9], mistake=False))
    assert SAID not in into.explain()


def test_few_ends_say_nothing():
    one_by_one(buffer(), rows([7, 3, 5, 6], mistake=True))


def test_observations_that_never_change_say_nothing():
    batch = rows([1] * 9, mistake=True)
    batch["observation"][:] = batch["next"]["observation"][:] = 1.0
    one_by_one(buffer(), batch)
    buffer().extend(batch)


def test_markers_say_more_than_observations():
    batch = rows([7, 3, 5, 6, 4, 2, 9], mistake=True)
    over = batch["next"]["done"]
    episode = np.cumsum(over) - over
    step = np.concatenate([np.arange(n) for n in (7, 3, 5, 6, 4, 2, 9)])
    batch["collector"] = {"traj_ids": episode.astype(np.int64), "traj_step": step}
    buffer().extend(batch)  # check_layout(buffer[:]) looks at these


def test_rows_of_datasets_are_looked_at():
    data = TensorDict(rows([7, 3, 5, 6, 4, 2, 9], mistake=True), [36])
    for flag in ("done", "terminated"):
        data["next", flag] = data["next", flag].reshape(36, 1)
    with pytest.warns(UserWarning, match=SAID):
        TensorDictReplayBuffer(storage=TensorStorage(data), writer=ImmutableDatasetWriter())


def vector_rows(mode, steps):
    """Steps of three CartPoles, and which of them are only resets."""
    env = gymnasium.make_vec(
        "CartPole-v1", 3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}
    )
    seen, _ = env.reset(seed=0)
    env.action_space.seed(0)
    resets = np.zeros(3, bool)
    for _ in range(steps):
        after, reward, terminated, truncated, info = env.step(env.action_space.sample())
        final = after.copy()
        if "final_obs" in info:
            for place in np.flatnonzero(info["_final_obs"]):
                final[place] = info["final_obs"][place]
        done = terminated | truncated
        flags = {"terminated": terminated, "truncated": truncated, "done": done}
        yield seen, {"observation": after, "reward": reward, **flags}, final, resets
        resets = done if mode is AutoresetMode.NEXT_STEP else resets
        seen = after
    env.close()


@pytest.mark.parametrize("ndim", [1, 2])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("mistake", [True, False])
def test_rows_of_vectors(mode, ndim, mistake):
    into = buffer(ndim=ndim)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for seen, after, final, resets in vector_rows(mode, 100):
            step = {"observation": seen, "next": after}
            if not mistake:
                step["next"] = {**after, "observation": final}
                step["collector"] = {"mask": ~resets}
            (into.add if ndim == 2 else into.extend)(step)
    assert any(SAID in str(one.message) for one in told) is mistake
    assert (SAID in into.explain()) is mistake


def test_a_shared_buffer_says_it_too():
    into = TensorDictReplayBuffer(storage=LazyTensorStorage(400, lanes=1), shared=True)
    with pytest.warns(UserWarning, match=SAID):
        one_by_one(into, rows([7, 3, 5, 6, 4, 2], mistake=True))


FLAGS_SAID = "rows have done flags under 'next' that contradict each other"


def wrong_flags(name):
    batch = rows([7, 3, 5, 6, 4, 2, 9], mistake=False)
    if name == "inverted":
        batch["next"]["terminated"] = ~batch["next"]["done"]
    if name == "left False":
        batch["next"]["done"] = np.zeros(36, bool)
    if name == "without terminated":
        batch["next"]["truncated"] = batch["next"].pop("terminated")
        batch["next"]["done"] = np.zeros(36, bool)
    if name == "done alone":
        batch["next"]["truncated"] = batch["next"]["done"] & False
        batch["next"]["terminated"] = batch["next"]["truncated"]
    return batch


@pytest.mark.parametrize("kind", ["memory", "lossless"])
@pytest.mark.parametrize("write", [one_by_one, in_calls, at_once])
@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("name", ["inverted", "left False", "without terminated", "done alone"])
def test_flags_that_contradict_each_other_are_said_once(name, numbered, write, kind):
    batch = wrong_flags(name)
    if numbered:
        batch["collector"] = {"traj_ids": np.zeros(36, np.int64), "traj_step": np.arange(36)}
    into = buffer(kind)
    with pytest.warns(UserWarning, match=FLAGS_SAID) as told:
        write(into, batch)
    assert [one.filename for one in told] == [__file__]
    assert FLAGS_SAID in into.explain()


@pytest.mark.parametrize("write", [one_by_one, in_calls, at_once])
def test_flags_of_padding_and_of_one_kind_say_nothing(write):
    into, batch = buffer(), wrong_flags("inverted")
    batch["collector"] = {"mask": batch["next"]["done"]}
    batch["next"]["terminated"] |= batch["next"]["done"]
    write(into, batch)
    into, batch = buffer(), wrong_flags("right")
    del batch["next"]["done"]
    write(into, batch)
    assert FLAGS_SAID not in into.explain()


def test_an_inverted_flag_alone_is_found_by_the_rows_after():
    batch = wrong_flags("inverted")
    del batch["next"]["done"]
    with pytest.warns(UserWarning, match=SAID):
        one_by_one(buffer(), batch)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mistake", [False, True])
def test_calls_of_one_row_count_what_add_and_larger_calls_count(mistake):
    data = TensorDict(rows([3, 2, 4, 2, 5], mistake), [16])
    data["next", "terminated"] = data["next", "done"].clone()
    data["next", "done"][-1] = False  # contradicts it
    counts = []
    for count in (0, 1, 2, 16):
        kept = buffer()
        for at in range(0, 16, count or 1):
            kept.extend(data[at : at + count]) if count else kept.add(data[at])
        checks = kept.storage.session.end_checks
        counts.append((checks.compared, checks.repeated, checks.contradictory))
    assert counts == [counts[0]] * 4
    assert counts[0] == (4, 4 if mistake else 0, 1)

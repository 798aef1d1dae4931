from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_layout import keys
from rl_layout.reference import ListRowSource
from rl_layout.testing import EndKind, environments, trajectories
from rl_transforms import MultiStep, TimeMaxPool


def frames(*values):
    return torch.tensor(values, dtype=torch.float32).unsqueeze(-1)


def test_steps_pool_the_last_frames_and_a_reset_restarts():
    pool = TimeMaxPool(T=3)
    root = pool.reset(TensorDict({"observation": frames(-5, 9)}, [2]))
    assert root["observation"].flatten().tolist() == [-5, 9]
    found = []
    for frame in [(-7, 1), (-6, 2), (-9, 3)]:
        root = pool.step(root, TensorDict({"observation": frames(*frame)}, [2]))
        found.append(root["observation"].flatten().tolist())
    assert found == [[-5, 9], [-5, 9], [-6, 3]]
    again = root.copy().set("observation", frames(-6, -8))  # row 1 was reset
    again = pool.reset(again, torch.tensor([False, True]))
    assert again["observation"].flatten().tolist() == [-6, -8]
    after = pool.step(again, TensorDict({"observation": frames(-20, -30)}, [2]))
    assert after["observation"].flatten().tolist() == [-6, -8]


def test_input_frames_are_unchanged_and_not_aliased():
    pool, first = TimeMaxPool(["seen"], ["pooled"], T=2), frames(4, 1)
    root = pool.reset(TensorDict({"seen": first}, [2]))
    first.fill_(99)
    second = frames(2, 3)
    after = pool.step(root, TensorDict({"seen": second}, [2]))
    second.fill_(99)
    assert after["pooled"].flatten().tolist() == [4, 3]
    third = pool.step(after, TensorDict({"seen": frames(0, 0)}, [2]))
    assert third["pooled"].flatten().tolist() == [2, 3]


def stepped(pool, rows):
    """What an environment that shows these rows ``[B, T]`` would give, step by step."""
    outs, ahead = [], []
    root = None
    for t in range(rows.shape[1]):
        shown = rows[:, t].select("observation")
        begins = rows[:, t][keys.IS_INIT].squeeze(-1)
        if t == 0:
            root = pool.reset(shown)
        elif begins.any():
            kept = torch.where(begins.unsqueeze(-1), shown["observation"], root["observation"])
            root = pool.reset(shown.copy().set("observation", kept), begins)
        outs.append(root["observation"])
        root = pool.step(root, rows[:, t]["next"].select("observation"))
        ahead.append(root["observation"])
    return torch.stack(outs, 1), torch.stack(ahead, 1)


@given(
    st.integers(1, 5),
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.integers(0, 2**16),
)
def test_rows_are_pooled_as_steps_are(size, lengths, seed):
    rows = environments(2, 11, lengths, [EndKind.TERMINATED, EndKind.TRUNCATED])
    noise = torch.Generator().manual_seed(seed)
    seen = torch.randn(rows["observation"].shape, generator=noise)
    next_seen = torch.randn(seen.shape, generator=noise)
    goes_on = ~rows[keys.NEXT_DONE][:, :-1]
    next_seen[:, :-1] = torch.where(goes_on, seen[:, 1:], next_seen[:, :-1])
    rows["observation"], rows["next", "observation"] = seen, next_seen
    pool = TimeMaxPool(T=size)
    pooled = pool(rows)
    expected = stepped(pool, rows)
    assert torch.equal(pooled["observation"], expected[0])
    assert torch.equal(pooled["next", "observation"], expected[1])
    assert torch.equal(rows["observation"], seen)


def test_sample_is_pooled_with_stored_rows():
    stored = trajectories([6, 4])
    stored["observation"] = torch.rand(10, 2, generator=torch.Generator().manual_seed(0))
    source = ListRowSource(stored)
    whole = TimeMaxPool(T=3)(stored)
    places = torch.tensor([9, 0, 4, 6, 7, 1])
    sample = stored[places].clone()
    sample[keys.ROW] = places
    sample[keys.IS_INIT] = torch.ones(6, 1, dtype=torch.bool)  # as in a sample of slices of one
    assert torch.equal(
        TimeMaxPool(T=3)(sample, source)["observation"], whole["observation"][places]
    )
    found = TimeMaxPool(T=3)(sample, source)["next", "observation"]
    assert torch.equal(found, whole["next", "observation"][places])
    alone = TimeMaxPool(T=3)(sample)
    assert torch.equal(alone["observation"], sample["observation"])


def test_frames_are_saved_in_the_state_dict():
    pool = TimeMaxPool(["a", ("b", "c")], T=2)
    values = {"a": frames(5, 1), "b": {"c": frames(0, 7)}}
    root = pool.reset(TensorDict(values, [2]))
    other = TimeMaxPool(["a", ("b", "c")], T=2)
    other.load_state_dict(pool.state_dict())
    low = TensorDict({"a": frames(0, 0), "b": {"c": frames(0, 0)}}, [2])
    for one in (pool, other):
        after = one.step(root, low)
        assert after["a"].flatten().tolist() == [5, 1]
        assert after["b", "c"].flatten().tolist() == [0, 7]


def test_maximum_of_bytes_is_in_bytes():
    pool = TimeMaxPool(T=2)
    root = pool.reset(
        TensorDict({"observation": torch.full((2, 3, 3), 200, dtype=torch.uint8)}, [2])
    )
    after = pool.step(
        root, TensorDict({"observation": torch.zeros(2, 3, 3, dtype=torch.uint8)}, [2])
    )
    assert after["observation"].dtype == torch.uint8
    assert after["observation"].unique().tolist() == [200]


def test_steps_before_a_reset_and_n_step_rows_are_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        TimeMaxPool(T=0)
    with pytest.raises(KeyError, match=r"'observation' is missing.*Call reset first"):
        TimeMaxPool(T=2).step(TensorDict({}, [2]), TensorDict({"observation": frames(1, 2)}, [2]))
    with pytest.raises(KeyError, match="'pixels' is missing"):
        TimeMaxPool(["pixels"], T=2).reset(TensorDict({}, [2]))
    rows = trajectories([4])
    with pytest.raises(ValueError, match="n-step rows: pool ahead of MultiStep"):
        TimeMaxPool(T=2)(MultiStep(0.9, 3)(rows))
    source = ListRowSource(rows)
    with pytest.raises(KeyError, match="'row'"):
        TimeMaxPool(T=2)(rows.exclude(keys.ROW), source)
    sample = rows.clone().set(keys.ROW, torch.arange(4))
    sample["observation"] = sample["observation"].double()
    with pytest.raises(ValueError, match="put the transforms that change it after this one"):
        TimeMaxPool(T=2)(sample, source)


def test_pool_of_one_frame_needs_no_markers():
    rows = TensorDict({"screen": torch.tensor([5.0, 3.0])}, [2])
    assert TimeMaxPool(["screen"], ["pooled"])(rows)["pooled"].tolist() == [5, 3]

"""The rows that a process shares with its workers."""

import torch

from rl_envs import SerialEnv, testing
from rl_envs.batched.shared_step_buffers import SharedStepBuffers, schema_of
from rl_slabs import Slab
from rl_specs import Unbounded


def test_a_row_holds_a_whole_step_and_what_to_reset():
    schema = schema_of(SerialEnv(3, lambda: testing.NestedEnv(batch_size=(2,))))
    flags = ["done", "terminated", "truncated"]
    root = [("root", "data", "action"), ("root", "data", "observation")]
    after = [("next", "data", "observation"), ("next", "data", "reward")]
    flags = [(part, flag) for part in ("root", "next") for flag in flags]
    assert set(schema) == {*root, *after, *flags, "_reset"}
    assert schema["root", "data", "observation"].shape == (2, 3)
    assert schema["_reset"].shape == (2, 1)


def test_each_side_sees_the_rows_of_the_other():
    with Slab.shared(schema_of(SerialEnv(5, testing.CountingEnv)), 5) as slab:
        whole, part = SharedStepBuffers(slab), SharedStepBuffers(slab, slice(3, 5))
        whole.root["action",][4] = [True, False]
        part.after["observation",][0] = 7
        part.mask[1] = True
        assert part.root["action",].tolist() == [[False, False], [True, False]]
        assert whole.after["observation",].flatten().tolist() == [0, 0, 0, 7, 0]
        assert whole.mask.flatten().tolist() == [False, False, False, False, True]


def test_specs_that_rows_cannot_hold_have_no_schema():
    for spec in (Unbounded((2, -1)), Unbounded((2, 3), dtype=torch.bfloat16)):
        env = SerialEnv(2, testing.CountingEnv)
        env.observation_spec = spec
        assert schema_of(env) is None

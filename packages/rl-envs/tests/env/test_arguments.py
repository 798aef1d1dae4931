"""Arguments of another kind: named at the call, before torch or numpy stumble over them."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rl_envs import (
    Alphabet,
    GymVectorEnv,
    Pendulums,
    RandomPolicy,
    SerialEnv,
    TransformedEnv,
    check_env_specs,
    space_of_spec,
    write_gif,
)
from rl_envs.testing import CountingEnv
from rl_specs import NonTensor, OneHot
from rl_transforms import StepCounter

SEEN = ("observation",)
ROW = {SEEN: np.zeros((2, 1), np.float32)}


def pair():
    env = SerialEnv(2, CountingEnv)
    env.reset()
    return env


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pair().maybe_reset([1]), "expected a tensordict: got list"),
        (lambda: pair().maybe_reset(None), "expected a tensordict.*got None"),
        (lambda: pair().rand_action(3), "expected a tensordict: got int"),
        (lambda: pair().rollout(2, policy=3), "policy: expected a function or a module, got 3"),
        (lambda: pair().rollout(2, callback=0), "callback: expected a function"),
        (lambda: pair().rollout(2, set_truncated=1.5), "set_truncated: expected True or False"),
        (lambda: pair().rollout(2, out=[1]), r"out: expected a tensordict, got \[1\]"),
        (lambda: pair().rollout(2, tensordict="a"), "expected a tensordict: got str"),
        (lambda: pair().rollout(2, lambda _: 5), "tensordict from the policy, got int.*Module"),
        (lambda: pair().load_state_dict([1]), r"of an environment returned, got \[1\]"),
        (lambda: pair().set_seed(0, 3), "static_seed: expected True or False"),
        (lambda: CountingEnv(3, "ab"), "expected a batch size of whole numbers"),
        (lambda: CountingEnv(3, (-2,)), r"batch size of whole numbers, as \(3,\): got \(-2,\)"),
        (lambda: Pendulums("three"), "num_envs: expected a whole number"),
        (lambda: Pendulums(3, max_steps=0), "max_steps: expected at least 1"),
        (lambda: Pendulums(3, device="nowhere"), "device: expected a torch.device or its name"),
        (lambda: Pendulums(3, device="cuda:99"), "device: there is no device 'cuda:99' here"),
        (lambda: GymVectorEnv(torch.ones(3)), "expected an id or a vector environment"),
        (
            lambda: Alphabet(spaces.Discrete(3)),
            "expected a Text space of Gymnasium, got a Discrete",
        ),
        (lambda: space_of_spec(spec=NonTensor()), "no Gymnasium space for NonTensor"),
        (lambda: write_gif(torch.ones(2), "no folder/a.gif"), "the folder 'no folder' is not"),
        (lambda: write_gif([1], "a.gif"), "frames: expected frames uint8"),
        (lambda: check_env_specs("CartPole-v1"), "env: expected an environment, got 'CartPole-v1'"),
        (lambda: RandomPolicy(OneHot(2))("a"), "tensordict: expected a tensordict, got 'a'"),
        (
            lambda: TransformedEnv(CountingEnv()).insert_transform([1], StepCounter()),
            r"index: expected a place, a whole number, got \[1\]",
        ),
    ],
)
def test_an_argument_of_another_kind_is_named(call, message):
    with pytest.raises((TypeError, ValueError, RuntimeError, FileNotFoundError), match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda env: env.reset_into([1]), r"reset_into: rows: expected arrays \[\*B, ...\] by key"),
        (lambda env: env.reset_into({SEEN: [1]}), "reset_into: rows: expected arrays"),
        (
            lambda env: env.reset_into({SEEN: np.zeros(3)}),
            r"rows \('observation',\): expected shape \(2, 1\), got \(3,\)",
        ),
        (lambda env: env.reset_into(ROW, np.zeros(3, bool)), r"expected a mask bool \(2, 1\)"),
        (lambda env: env.step_into({}, ROW), r"the actions \[\('action',\)\] are missing"),
        (lambda env: env.bind({SEEN: np.zeros((2,))}, {}), r"expected shape \(2, 'T', 1\)"),
        (lambda env: env.split(3), "expected in_keys as a list of keys"),
    ],
)
def test_rows_of_another_form_are_named(call, message):
    env = TransformedEnv(SerialEnv(2, CountingEnv), StepCounter())
    env.reset()
    with pytest.raises((KeyError, TypeError, ValueError), match=message):
        call(env)


def test_a_failure_that_no_argument_explains_stays_as_it_is():
    class Failing(CountingEnv):
        def _step(self, tensordict):
            msg = "the game is lost"
            raise ValueError(msg)

    env = Failing()
    env.reset()
    with pytest.raises(ValueError, match=r"^the game is lost$"):
        env.step_into({("action",): np.array([True, False])}, {})


def test_a_module_on_tensors_is_told_what_a_policy_is_given():
    with pytest.raises(TypeError) as caught:
        CountingEnv().rollout(2, nn.Linear(1, 2))
    assert "TensorDictModule(module, in_keys, out_keys)" in caught.value.__notes__[0]


def test_a_rollout_until_all_are_done_needs_no_other_switch():
    env = SerialEnv(2, [lambda: CountingEnv(2), lambda: CountingEnv(5)])
    assert env.rollout(9, break_when_all_done=True).shape == (2, 5)
    assert env.rollout(9).shape == (2, 2)

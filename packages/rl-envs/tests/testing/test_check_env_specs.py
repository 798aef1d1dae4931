import pytest
import torch
from tensordict import TensorDict

from rl_envs import check_env_specs
from rl_envs.testing import CountingEnv, GroupsEnv, MultiAgentEnv, NestedEnv


class Faulty(CountingEnv):
    """A counter whose steps are changed by a function."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def _step(self, tensordict):
        after = super()._step(tensordict)
        self.change(after, tensordict)
        return after


@pytest.mark.parametrize("make", [CountingEnv, NestedEnv, GroupsEnv, lambda: MultiAgentEnv(3)])
def test_good_environments_pass(make):
    check_env_specs(make())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a, _: a.set("extra", torch.ones(3)), "step: 'extra' has no spec"),
        (lambda a, _: a.set("observation", torch.full((1,), torch.nan)), "'observation'.*NaN"),
        (lambda a, _: a.set("observation", torch.ones(3)), r"expected shape \(1,\), got \(3,\)"),
        (lambda a, _: a.set("reward", torch.ones(1).long()), "'reward'.*float32.*int64"),
        (lambda a, _: a.pop("observation"), "KeyError.*'observation' is missing"),
        (lambda _, root: root["action"].fill_(True), "root that it was given was changed"),
    ],
)
def test_each_fault_is_named(change, words):
    with pytest.raises(AssertionError, match=f"(?s)Faulty does not do.*{words}"):
        check_env_specs(Faulty(change))


def test_all_faults_are_listed_at_once():
    def change(after, root):
        after.set("extra", torch.ones(3))
        after.set("observation", torch.full((1,), torch.nan))

    with pytest.raises(AssertionError) as caught:
        check_env_specs(Faulty(change))
    assert len(str(caught.value).splitlines()) == 3  # the title, and each fault once


def test_a_reset_is_checked_too():
    class Bare(CountingEnv):
        def _reset(self, tensordict):
            return TensorDict()

    with pytest.raises(AssertionError, match="reset: 'observation' is missing"):
        check_env_specs(Bare())


def test_check_env_specs_restores_check_values():
    env = CountingEnv()
    check_env_specs(env, seed=3)
    assert env.check_values

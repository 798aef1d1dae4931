"""Estimators in compiled code: they break the graph and give what they give outside of it."""

import pytest
import torch
from tensordict.nn import TensorDictModule

from rl_layout.testing import EndKind, trajectories
from rl_value import GAE, TD0Estimator, TD1Estimator, TDLambdaEstimator

pytestmark = pytest.mark.filterwarnings("error")


def critic():
    return TensorDictModule(torch.nn.Linear(2, 1), ["observation"], ["state_value"])


@pytest.mark.parametrize("lengths", [[4, 5], [1500, 1000]])  # by numpy, and by numba if installed
@pytest.mark.parametrize("kind", [GAE, TD0Estimator, TD1Estimator, TDLambdaEstimator])
def test_an_estimator_can_be_compiled(kind, lengths):
    torch.compiler.reset()
    settings = {"lmbda": 0.8} if kind in (GAE, TDLambdaEstimator) else {}
    estimator = kind(gamma=0.9, value_network=critic(), **settings)
    batch = trajectories(lengths, EndKind.TRUNCATED)
    expected = estimator(batch.clone())
    found = torch.compile(estimator, backend="eager")(batch.clone())
    for key in ("advantage", "value_target", "state_value", ("next", "state_value")):
        torch.testing.assert_close(found[key], expected[key], rtol=0, atol=0)


def test_function_that_calls_an_estimator_can_be_compiled():
    torch.compiler.reset()
    estimator = GAE(gamma=0.9, lmbda=0.8, value_network=critic())
    batch = trajectories([4, 5])

    def step(batch):
        doubled = batch["next", "reward"] * 2
        target = estimator.value_estimate(batch)
        return estimator(batch)["advantage"] + doubled + target

    found = torch.compile(step, backend="eager")(batch.clone())
    torch.testing.assert_close(found, step(batch), rtol=0, atol=0)


def test_one_graph_is_refused_with_what_to_do():
    torch.compiler.reset()
    estimator = GAE(gamma=0.9, lmbda=0.8, value_network=critic())
    whole = torch.compile(estimator, backend="eager", fullgraph=True)
    # private: the exception has no public name
    with pytest.raises(torch._dynamo.exc.Unsupported, match="compute the advantage ahead"):
        whole(trajectories([4, 5]))

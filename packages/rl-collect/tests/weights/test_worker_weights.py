"""Versions of weights: made on request, or when so many batches have begun with the last one."""

import pytest
import torch
from torch import nn

from rl_collect.weights.worker_weights import WorkerWeights


@pytest.mark.parametrize(
    ("interval", "versions"),
    [(-1, [0] * 7), (1, [0, 1, 2, 3, 4, 5, 6]), (3, [0, 0, 0, 1, 1, 1, 2])],
)
def test_versions_are_made_after_an_interval_of_batches(interval, versions):
    policy = nn.Linear(3, 2)
    weights, seen = WorkerWeights.like(policy, policy, interval), []
    for _ in versions:
        weights.count_batch()
        seen.append(weights.version)
    weights.close()
    assert seen == versions


def test_a_version_on_request_begins_the_interval_again():
    policy = nn.Linear(3, 2)
    weights, seen = WorkerWeights.like(policy, policy, 2), []
    for number in range(5):
        if number == 1:
            weights.publish(None)
        weights.count_batch()
        seen.append(weights.version)
    weights.close()
    assert seen == [0, 1, 1, 2, 2]


def test_restored_weights_are_the_newest_version_and_those_of_the_policy():
    policy, saved = nn.Linear(3, 2), nn.Linear(3, 2).state_dict()
    weights = WorkerWeights.like(policy, policy, -1)
    restored = weights.restored(saved, 5)
    weights.close()
    other = nn.Linear(3, 2)
    assert restored.shared.load_into(other, -1) == restored.version == 5
    restored.close()
    for found in (policy, other):
        torch.testing.assert_close(found.state_dict(), saved, rtol=0, atol=0)


def test_a_policy_without_weights_makes_no_version():
    weights = WorkerWeights.like(None, None, 1)
    weights.count_batch()
    assert (weights.shared, weights.version) == (None, 0)
    with pytest.raises(TypeError, match="no weights that could be replaced"):
        weights.publish(nn.Linear(3, 2))

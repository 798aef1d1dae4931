import pytest
import torch
from tensordict.nn import TensorDictModule
from torch.nn import functional as F

from rl_layout import compiled

ACTIONS = 3


class Chooser(torch.nn.Module):
    """Values, and the best choice among the actions that a mask allows."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, ACTIONS, dtype=torch.float64)

    def forward(self, observation, allowed):
        values = self.layer(observation)
        best = values.masked_fill(~allowed, -torch.inf).argmax(-1, keepdim=True)
        return F.one_hot(best[..., 0], ACTIONS), values, values.gather(-1, best)


@pytest.fixture
def chooser():
    """A network that writes its choice alongside the values of all actions."""
    out = ["action", "action_value", "chosen_action_value"]
    return TensorDictModule(Chooser(), ["observation", "allowed"], out)


@pytest.fixture
def without_numba(monkeypatch):
    """Numba as if it were not installed."""
    monkeypatch.setattr(compiled, "_imported", lambda name: None)


@pytest.fixture(params=["numba", "numpy"])
def either_way(request):
    """With numba, and as if it were not installed."""
    if request.param == "numpy":
        request.getfixturevalue("without_numba")

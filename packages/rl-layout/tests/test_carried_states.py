import pytest
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_layout import refuse_shared_states
from rl_layout.carried_states import carried_states


class Cell(nn.GRUCell):
    def forward(self, seen, state):
        after = super().forward(seen, state)
        return after, after


def cell(state="state", seen="observation", out="features", network=None):
    network = Cell(3, 4) if network is None else network
    return TensorDictModule(network, [seen, state], [out, keys_next(state)])


def keys_next(key):
    return ("next", key) if isinstance(key, str) else ("next", *key)


class Primed(nn.Module):
    """Says what it carries by its primer alone."""

    def __init__(self, *names):
        super().__init__()
        self.names = names

    def make_tensordict_primer(self):
        return type("Primer", (), {"primers": Names(self.names)})()


class Names:
    def __init__(self, names):
        self.names = names

    def keys(self, **_):
        return self.names


def test_a_state_is_read_and_written_for_the_next_step():
    assert carried_states(cell()) == {("state",)}
    assert carried_states(cell(("agent", "state"))) == {("agent", "state")}
    assert carried_states(TensorDictModule(nn.Linear(3, 4), ["observation"], ["x"])) == set()
    assert carried_states(nn.Linear(3, 4)) == set()
    assert carried_states(Primed("noise")) == {("noise",)}
    assert carried_states(None) == set()


def test_two_networks_under_one_state_key_are_refused_by_name():
    wrong = r"'actor\.module\.1' \(TensorDictModule\) and 'critic' \(TensorDictModule\) .*'state'"
    body = TensorDictSequential(TensorDictModule(nn.Identity(), ["x"], ["observation"]), cell())
    with pytest.raises(ValueError, match=wrong):
        refuse_shared_states({"actor": body, "critic": cell()})
    with pytest.raises(ValueError, match=r"'policy\.module\.0'.*'policy\.module\.1'"):
        refuse_shared_states({"policy": TensorDictSequential(cell(), cell(out="other"))})
    with pytest.raises(ValueError, match=r"\('agent', 'state'\)"):
        refuse_shared_states({"a": cell(("agent", "state")), "b": cell(("agent", "state"))})


def test_a_primer_tells_the_states_of_a_module_without_keys():
    with pytest.raises(ValueError, match="'noise'"):
        refuse_shared_states({"policy": nn.Sequential(Primed("noise"), Primed("noise", "more"))})
    refuse_shared_states({"policy": nn.Sequential(Primed("noise"), Primed("more"))})


def test_a_shared_backbone_has_one_state():
    shared = cell()
    actor = TensorDictSequential(shared, TensorDictModule(nn.Linear(4, 2), ["features"], ["loc"]))
    value = TensorDictModule(nn.Linear(4, 1), ["features"], ["state_value"])
    refuse_shared_states({"actor": actor, "critic": TensorDictSequential(shared, value)})
    refuse_shared_states({"policy": TensorDictSequential(actor, shared, value), "critic": None})
    network = shared.module
    refuse_shared_states({"actor": shared, "critic": cell(network=network, out="other")})
    with pytest.raises(ValueError, match="'state'"):  # what it reads differs, and so its state
        refuse_shared_states({"actor": shared, "critic": cell(network=network, seen="other")})


def test_distinct_keys_are_welcome():
    refuse_shared_states({"actor": cell("actor_state"), "critic": cell("critic_state")})
    refuse_shared_states({})

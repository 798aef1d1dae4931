from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rl_policies import MLP, ConvNet, Ensemble, ValueOperator


def twice(layer):
    return nn.Sequential(nn.Linear(3, 5), layer, nn.Linear(5, 5), layer, nn.Linear(5, 2))


def doubling(inner):
    inner.register_forward_hook(lambda module, given, out: out * 2)
    return nn.Sequential(inner, nn.ReLU())


NETWORKS = {
    "linear": lambda: nn.Linear(3, 2),
    "no bias": lambda: MLP(3, 2, num_cells=[5], bias_last_layer=False),
    "layer norm": lambda: MLP(3, 1, num_cells=[5, 7], norm_class=nn.LayerNorm),
    "norm without scale": lambda: nn.Sequential(
        nn.LayerNorm(3, elementwise_affine=False), nn.Linear(3, 2)
    ),
    "norm first": lambda: nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2), nn.ReLU()),
    "batch norm": lambda: MLP(3, 2, num_cells=[5], norm_class=nn.BatchNorm1d),
    "batch norm first": lambda: nn.Sequential(nn.BatchNorm1d(3, momentum=None), nn.Linear(3, 2)),
    "shaped": lambda: MLP(3, (2, 4), num_cells=[5], activation_class=nn.SiLU),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Linear(3, 5), nn.GELU()), MLP(5, 2, 1)),
    "nothing to learn": lambda: nn.Sequential(nn.Tanh()),
    "one activation twice": lambda: twice(nn.Tanh()),
    "one layer twice": lambda: twice(nn.Linear(5, 5)),
    "hook of a sequence inside": lambda: doubling(nn.Sequential(nn.Linear(3, 2))),
    "shaped inside": lambda: nn.Sequential(MLP(3, (2, 4), num_cells=[5]), nn.Flatten(-2)),
    "unknown activation": lambda: nn.Sequential(nn.Linear(3, 2), nn.Softmax(-1)),
}
each_network = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)


def perturbed(make):
    """A network none of whose parameters is 0 or 1."""
    network = make().double()
    for value in network.parameters():
        value.data += torch.randn_like(value)
    return network


@each_network
@pytest.mark.parametrize("batch", [(7,), (6, 4), ()], ids=str)
def test_members_give_what_they_give_alone(make, batch):
    members = [perturbed(make).eval() for _ in range(4)]
    x = torch.randn(*batch, 3, dtype=torch.float64)
    rows = x.reshape(-1, 3)  # BatchNorm1d takes the second of three dimensions for the features
    expected = torch.stack([member(rows) for member in members], 1)
    assert_close(Ensemble(members)(x), expected.unflatten(0, batch) if batch else expected[0])


@each_network
def test_gradients_are_those_of_members_alone(make):
    members = [perturbed(make) for _ in range(3)]
    ensemble = Ensemble(members)
    x = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    ensemble(x).square().sum().backward()
    torch.stack([member(y) for member in members], 1).square().sum().backward()
    assert_close(x.grad, y.grad)
    ours = torch.cat([value.grad.flatten() for value in ensemble.parameters()] or [x.grad])
    theirs = torch.cat([v.grad.flatten() for m in members for v in m.parameters()] or [y.grad])
    assert_close(ours.sort().values, theirs.sort().values)  # grouped by layer, and by member


def test_batch_norm_keeps_the_statistics_of_each_member():
    members = [perturbed(NETWORKS["batch norm"]) for _ in range(3)]
    ensemble = Ensemble(members)
    for _ in range(4):
        x = torch.randn(8, 3, dtype=torch.float64)
        assert_close(ensemble(x), torch.stack([member(x) for member in members], 1))
    ensemble.eval(), [member.eval() for member in members]
    assert_close(ensemble(x), torch.stack([member(x) for member in members], 1))


@pytest.mark.parametrize("first", [nn.Dropout(0.5), nn.Linear(3, 3)], ids=["first", "later"])
def test_dropout_draws_for_each_member(first):
    network = nn.Sequential(first, nn.Dropout(0.5), nn.Linear(3, 1))
    made = Ensemble([network, network])
    assert made.obstacle is None
    out = made(torch.ones(500, 3))
    assert (out[:, 0] != out[:, 1]).float().mean() > 0.5
    made.eval()
    out = made(torch.ones(500, 3))
    assert_close(out[:, 0], out[:, 1])


def test_dropout_in_evaluation_stands_before_what_writes_in_place():
    layers = nn.Dropout(), nn.ReLU(inplace=True), nn.Linear(3, 2)
    made, x = Ensemble([nn.Sequential(*layers)] * 2).eval(), torch.randn(5, 3)
    expected = layers[2](x.relu())
    assert_close(made(x), torch.stack([expected, expected], 1))


def test_hooks_of_any_member_run():
    networks = [MLP(3, 1, num_cells=[5]) for _ in range(2)]
    networks[1][0].register_forward_hook(lambda module, given, out: out * 2)
    made, x = Ensemble(networks), torch.randn(4, 3)
    assert_close(made(x), torch.stack([network(x) for network in networks], 1))
    assert "because of hooks" in repr(made)


def test_forward_that_was_set_on_a_layer_is_called():
    networks = [nn.Sequential(nn.Linear(3, 1)) for _ in range(2)]
    networks[0][0].forward = lambda x: x[..., :1] * 3
    made, x = Ensemble(networks), torch.randn(4, 3)
    assert_close(made(x), torch.stack([network(x) for network in networks], 1))


def test_several_inputs_lie_side_by_side():
    members = [MLP(4, 1, num_cells=[5]) for _ in range(3)]
    x, action = torch.randn(6, 3), torch.ones(6, 1, dtype=torch.bool)
    expected = torch.stack([member(x, action) for member in members], 1)
    assert_close(Ensemble(members)(x, action), expected)


def test_members_drawn_anew_differ_from_each_other_and_from_the_network():
    network = MLP(3, 1, num_cells=[5], norm_class=nn.BatchNorm1d)
    network(torch.randn(9, 3))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    made = Ensemble.from_module(network, 4)
    assert made.num_members == 4
    first = made.layers[0].weight
    assert len({*first.flatten(1).sum(1).tolist(), network[0].weight.sum().item()}) == 5
    assert_close(made.layers[1].norm.running_mean, torch.zeros(4 * 5))
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_other_networks_are_called_one_after_the_other_and_repr_says_why():
    networks = [ConvNet(1, num_cells=[2], kernel_sizes=3) for _ in range(2)]
    made, x = Ensemble(networks), torch.randn(5, 1, 6, 6)
    assert_close(made(x), torch.stack([network(x) for network in networks], 1))
    assert "2 members one after the other, because of ConvNet" in repr(made)
    assert "4 members at once" in repr(Ensemble.from_module(MLP(3, 1), 4))


def test_hooks_of_a_layer_run():
    network, seen = MLP(3, 1, num_cells=[5]), []
    network[0].register_forward_hook(lambda *_: seen.append(1))
    Ensemble([network, network])(torch.ones(2, 3))
    assert len(seen) == 2


def test_networks_are_copied():
    network = nn.Linear(3, 1)
    made = Ensemble([network])
    network.weight.data.zero_()
    assert (made(torch.ones(2, 3)) != network(torch.ones(2, 3))[:, None]).all()


def test_training_mode_and_frozen_parameters_are_those_of_members():
    made = Ensemble([MLP(3, 1).eval().requires_grad_(False)])
    assert not made.training
    assert not any(value.requires_grad for value in made.parameters())


def test_compiled_ensemble_gives_the_same():
    made, x = Ensemble.from_module(MLP(3, 1, norm_class=nn.LayerNorm), 2), torch.randn(4, 3)
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    assert_close(compiled(x), made(x))


def test_weights_lie_as_products_read_them_and_stay_so_in_copies_and_when_loaded():
    made = Ensemble.from_module(MLP(3, 1, num_cells=[5, 5]), 4)
    plain = {name: value.clone().contiguous() for name, value in made.state_dict().items()}
    copied = deepcopy(made)
    copied.load_state_dict(plain)
    sum(value.square().sum() for value in copied.parameters()).backward()
    torch.optim.Adam(copied.parameters()).step()
    for each in (made, copied):
        first, second, last = (each.layers[place].weight for place in (0, 2, 4))
        assert first.mT.is_contiguous()
        assert second.mT.is_contiguous()
        assert last.is_contiguous()
        assert (first.shape, last.shape) == ((4, 5, 3), (4, 1, 5))


def test_critics_of_one_architecture_are_a_critic():
    critic = ValueOperator(MLP(out_features=1, in_features=4), ["observation", "action"])
    made = critic.ensemble(3)
    assert (made.in_keys, made.out_keys) == (critic.in_keys, critic.out_keys)
    assert made.step(torch.zeros(5, 3), torch.zeros(5, 1))[0].shape == (5, 3, 1)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


@pytest.mark.parametrize(
    ("networks", "error", "message"),
    [
        ([], ValueError, "needs a member"),
        ([nn.Linear(3, 1), 5], TypeError, "member 1 must be a torch module: got int"),
        ([MLP(3, 1), MLP(3, 1, depth=1)], ValueError, "differ at '2'"),
        ([nn.Linear(3, 1), nn.Linear(3, 2)], ValueError, r"out_features=1.*out_features=2"),
        ([nn.Linear(3, 1), nn.Linear(3, 1).double()], ValueError, "float32.*float64"),
        ([nn.Sequential(), nn.Sequential(nn.Tanh())], ValueError, "members differ"),
        ([MLP(out_features=1)], ValueError, "member 0 has a lazy layer"),
        (
            [nn.Linear(3, 1).requires_grad_(False), nn.Linear(3, 1)],
            ValueError,
            "'weight': .* on cpu in member 0, .* on cpu that learns in member 1",
        ),
    ],
)
def test_members_that_do_not_fit_are_refused(networks, error, message):
    with pytest.raises(error, match=message):
        Ensemble(networks)


def test_drawing_anew_is_refused_by_name():
    with pytest.raises(ValueError, match="1 is a Scale, which has parameters"):
        Ensemble.from_module(nn.Sequential(nn.Linear(3, 1), Scale()), 2)
    with pytest.raises(ValueError, match="num: expected at least 1, got 0"):
        Ensemble.from_module(nn.Linear(3, 1), 0)

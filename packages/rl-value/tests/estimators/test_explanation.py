"""What estimators and losses say of the way that a batch takes."""

import pytest
import torch
from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule
from tensordict.nn import ProbabilisticTensorDictSequential as Sequential

from rl_layout import keys
from rl_layout.synthetic import trajectories
from rl_value import GAE, ClipPPOLoss, DQNLoss, TD0Estimator, TDLambdaEstimator, VTrace


def critic(**given):
    return TensorDictModule(lambda x: x[..., 1:], ["observation"], ["state_value"], **given)


def cell():
    return TensorDictModule(
        lambda x, h: (x[..., 1:], h), ["observation", "h"], ["state_value", ("next", "h")]
    )


def actor():
    return Sequential(
        TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["logits"]),
        ProbabilisticTensorDictModule(
            ["logits"], ["action"], distribution_class=torch.distributions.Categorical
        ),
    )


def line(text, start):
    (found,) = [row.strip() for row in text.split("\n") if row.strip().startswith(start)]
    return found.removeprefix(f"{start}: ")


def gae(network=None, **settings):
    return GAE(gamma=0.9, lmbda=0.8, value_network=network or critic(), **settings)


def test_explanation_is_a_title_and_indented_lines():
    first, *rest = gae().explain(trajectories([3])).split("\n")
    assert first == "GAE"
    assert [row.split(":")[0] for row in rest] == [
        "  segments",
        "  left out",
        "  values",
        "  scan",
        "  compiled",
    ]


def test_explanation_writes_nothing_and_calls_no_network():
    def refuse(_):
        raise AssertionError

    batch = trajectories([3])
    before = set(batch.keys(True))
    gae(TensorDictModule(refuse, ["observation"], ["state_value"])).explain(batch)
    assert set(batch.keys(True)) == before


def test_segments_are_explained_by_the_markers_that_are_there():
    batch = trajectories([3, 2])
    said = line(gae().explain(batch), "segments")
    assert said.startswith("2 in 5 rows, by is_init, ('next', 'done')")
    bare = batch.exclude("collector")
    bare.names = None
    assert line(gae().explain(bare), "segments").endswith("observations that follow each other")


def test_rows_that_are_left_out_are_counted_by_their_reason():
    batch = trajectories([3, 2])
    assert line(gae().explain(batch), "left out") == "no row"
    batch[keys.NEXT_MISSING] = torch.tensor([True, False, False, False, False])
    batch[keys.HISTORY_MISSING] = torch.tensor([True, True, False, False, False])
    batch[keys.MASK] = torch.tensor([True, True, True, True, False])
    said = line(gae().explain(batch), "left out")
    assert said == "1 padding, 1 without their next observation, 2 without their history"
    assert "next" not in line(gae(missing_next="root").explain(batch), "left out")


@pytest.mark.parametrize(
    ("network", "settings", "reason"),
    [
        (critic, {}, "as they lie: it looks at single rows"),
        (critic, {"single_call": False}, "single rows, and once more: single_call=False"),
        (critic, {"shifted": True}, "what comes after it: shifted=True"),
        (critic, {"num_chunks": 2}, "what comes after it: it is called in chunks"),
        (cell, {}, "what comes after it: it keeps h"),
    ],
)
def test_calls_of_the_network_are_explained(network, settings, reason):
    said = line(gae(network(), **settings).explain(trajectories([3, 2])), "values")
    assert said.endswith(reason)


def test_network_with_a_hook_is_said_to_be_called_on_a_tensordict():
    net = critic()
    assert "TensorDictModule called on tensors, 3 rows" in gae(net).explain(trajectories([3]))
    net.register_forward_hook(lambda *_: None)
    said = line(gae(net).explain(trajectories([3])), "values")
    assert said.startswith("TensorDictModule called on a tensordict (")
    assert "hook" in said


def test_stored_values_are_said_to_be_stored():
    batch = gae()(trajectories([3]))
    assert line(gae(skip_existing=True).explain(batch), "values") == "stored"
    nothing = TDLambdaEstimator(gamma=0.9, lmbda=0.8, value_network=None)
    assert line(nothing.explain(trajectories([3])), "values").startswith("missing")


@pytest.mark.parametrize(("size", "way"), [(2_047, "numpy, in blocks"), (2_048, "numba")])
def test_scan_of_many_steps_is_numbas(size, way):
    assert line(gae().explain(trajectories([size])), "scan").startswith(way)


@pytest.mark.usefixtures("without_numba")
def test_scan_without_numba_is_numpys():
    said = line(gae().explain(trajectories([3_000])), "scan")
    assert said == "numpy, in blocks: numba is not of use here"


def test_scan_of_each_estimator_is_explained():
    batch, net = trajectories([3]), critic()
    settings = {"gamma": 0.9, "value_network": net}
    assert line(TD0Estimator(**settings).explain(batch), "scan").startswith("none")
    made = TDLambdaEstimator(lmbda=0.8, **settings).explain(batch)
    assert line(made, "scan") == "numpy, in blocks: constant factors on the CPU"
    made = VTrace(actor_network=actor(), **settings).explain(batch)
    assert line(made, "scan") == "numpy, in blocks: a factor for each step"
    steps = gae()
    steps.lmbda = torch.full((3, 1), 0.8)
    assert line(steps.explain(batch), "scan") == "numpy, in blocks: a factor for each step"
    made = gae(differentiable=True).explain(batch)
    assert line(made, "scan").endswith("a node of autograd, where gradients are wanted")
    batch[keys.STEPS_TO_NEXT_OBS] = torch.tensor([[2], [2], [1]])
    assert line(gae().explain(batch), "scan").endswith("rows of n steps")


def test_policy_loss_explains_where_the_advantage_comes_from():
    loss, batch = ClipPPOLoss(actor(), critic()), trajectories([3, 2])
    batch[keys.MASK] = torch.tensor([True, True, True, True, False])
    text = loss.explain(batch)
    assert line(text, "steps") == "4 of 5 count"
    assert line(text, "advantage") == "estimated by GAE"
    assert line(text, "segments").startswith("2 in 4 rows")
    stored = batch.clone()
    gae()(stored)
    text = loss.explain(stored)
    assert line(text, "advantage") == "stored"
    half = loss.explain(stored.exclude("value_target"))
    assert line(half, "advantage") == "estimated by GAE"
    assert line(text, "compiled").startswith("one graph")


def test_q_loss_explains_its_next_values_and_its_graph():
    net = TensorDictModule(torch.nn.Linear(2, 3), ["observation"], ["action_value"])
    loss, batch = DQNLoss(net, action_space="categorical", double_dqn=True), trajectories([3])
    text = loss.explain(batch)
    assert line(text, "next values").endswith("once more: the network itself chooses next actions")
    assert line(text, "compiled").startswith("one graph")
    loss.make_value_estimator("td_lambda", average_rewards=True)
    assert line(loss.explain(batch), "compiled").startswith("outside of the graph")

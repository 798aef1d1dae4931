from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch.testing import assert_close

from rl_layout import EndKind, keys, set_recurrent_mode
from rl_layout.synthetic import environments, trajectories
from rl_recurrent import GRUModule, LSTMModule

# what torch itself says where a graph continues tensors that another one made
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
WIDTH = 5


def flat():
    return trajectories([5, 3, 4])


def grid():
    return environments(2, 6, [4], [EndKind.TERMINATED])


def unnumbered():
    """Rows of two environments side by side, which only observations tell apart."""
    batch = environments(2, 6, [9], [EndKind.TERMINATED])
    batch.names = None
    return batch.exclude("collector").transpose(0, 1).reshape(-1)


def started(batch, module):
    for key in module.state_keys:
        batch[key] = torch.randn(*batch.batch_size, 1, WIDTH)
    return batch


def made(make, **options):
    torch.manual_seed(3)
    torch.compiler.reset()  # all modules share the code that is compiled, and a limit on its graphs
    return make(2, WIDTH, in_key="observation", out_key="y", **options)


def outcome(run, module, batch):
    module.zero_grad()
    with set_recurrent_mode(True):
        out = run(batch.clone())
    out["y"].square().sum().backward()
    return [out[key] for key in module.out_keys] + [p.grad.clone() for p in module.parameters()]


@pytest.mark.parametrize("make", [GRUModule, LSTMModule])
@pytest.mark.parametrize("batch", [flat, grid], ids=["flat", "grid"])
@pytest.mark.parametrize("backend", ["pad", "pack", "scan", "auto"])
def test_compiled_modules_equal_eager_ones_with_any_backend(make, batch, backend):
    module = made(make, recurrent_backend=backend)
    rows = started(batch(), module)
    wanted = outcome(module, module, rows)
    found = outcome(torch.compile(module, backend="aot_eager"), module, rows)
    assert_close(found, wanted)


@pytest.mark.parametrize(
    ("batch", "options"),
    [
        (flat, {"recurrent_backend": "pack"}),
        (grid, {"recurrent_backend": "pad"}),
        (flat, {}),
        (unnumbered, {"max_length": 12}),
    ],
    ids=["pack", "pad", "flat", "observations"],
)
def test_graph_break_names_the_options_of_one_graph(batch, options):
    module = made(GRUModule, **options)
    rows = started(batch().exclude("y"), module)
    whole = torch.compile(module, backend="aot_eager", fullgraph=True)
    with set_recurrent_mode(True), pytest.raises(RuntimeError, match=r"For one graph take .*scan"):
        whole(rows)


def test_loss_over_a_flat_batch_compiles():
    module = made(LSTMModule)
    rows = started(flat(), module)

    def loss(batch):
        scaled = batch.set("observation", batch["observation"] / 2)
        with set_recurrent_mode(True):
            return module(scaled)["y"].square().mean()

    wanted = loss(rows.clone())
    assert_close(torch.compile(loss, backend="aot_eager")(rows.clone()), wanted)


@pytest.mark.parametrize("max_length", [None, 12])
def test_compiled_scans_cut_at_contradicting_observations(max_length):
    rows = unnumbered()
    module = made(GRUModule, recurrent_backend="scan", max_length=max_length)
    rows = started(rows, module)
    rows["is_init"][:] = False
    whole = set_recurrent_mode(True)(made(GRUModule, recurrent_backend="pack"))
    with pytest.warns(UserWarning, match="contradict"):
        wanted = whole(rows.clone())["y"]
    with set_recurrent_mode(True):
        assert_close(module(rows.clone())["y"], wanted)
    alone = [module.step(*(rows[i : i + 1][key] for key in module.in_keys))[0] for i in range(12)]
    assert_close(wanted, torch.cat(alone))  # every row starts from its own state
    compiled = torch.compile(module, backend="aot_eager")
    with set_recurrent_mode(True):
        assert_close(compiled(rows.clone())["y"], wanted)


def test_compiled_scan_of_n_step_rows_is_one_graph():
    module = made(GRUModule, recurrent_backend="scan", max_length=5)
    rows = started(flat().exclude("y"), module)
    rows["next", "done"][[3, 4]] = True  # both horizons reach the end of the first trajectory
    rows[keys.STEPS_TO_NEXT_OBS] = torch.ones(12, 1, dtype=torch.int64)
    rows[keys.STEPS_TO_NEXT_OBS][3] = 2
    whole = torch.compile(module, backend="aot_eager", fullgraph=True)
    with set_recurrent_mode(True):
        wanted = module(rows.clone())["y"]
        assert_close(whole(rows.clone())["y"], wanted)


class Outputs(torch.nn.Module):
    """The outputs of a module for tensors, as `torch.export` takes them."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, entries):
        with set_recurrent_mode(True):
            return self.module(TensorDict(entries, [2, 6]))["y"]


def test_exported_scan_equals_the_eager_one():
    module = made(GRUModule, recurrent_backend="scan", max_length=6)
    rows = started(grid().exclude("y"), module)
    rows["is_init"][:, 2:] |= rows["is_init"][:, :-2]  # cuts that no end explains
    outputs, entries = Outputs(module), rows.to_dict()
    exported = torch.export.export(outputs, (entries,), strict=False).module()
    assert_close(exported(entries), outputs(entries))


@pytest.mark.parametrize("make", [GRUModule, LSTMModule])
def test_single_step_with_ids_is_one_graph(make):
    module = made(make)
    root = started(grid()[:, 1].select("observation", "is_init", "collector"), module)
    assert keys.TRAJ_IDS in root.keys(True)
    wanted = module(root.clone())
    found = torch.compile(module, backend="aot_eager", fullgraph=True)(root.clone())
    for key in module.out_keys:
        assert_close(found[key], wanted[key])

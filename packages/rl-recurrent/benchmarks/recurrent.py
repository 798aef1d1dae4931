"""LSTM and GRU on flat batches compared with torchrl's modules and torch's networks.

Run with `nox -s "bench(rl-recurrent)"`; with `-- lstm ragged` for some cells or tables alone.
Forward and backward with gradients of the parameters and of the inputs. Medians of calls taken in
turn; every ratio is peer over ours, and above 1 is faster. The bars of the package stand after the
ratios that they ask for. A table is printed as soon as it is there.
"""

from __future__ import annotations

import argparse
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import torch
from bench import medians_us, report, session, table
from tensordict import TensorDict
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import rl_recurrent as ours
from rl_layout import Segments, set_recurrent_mode
from rl_layout.synthetic import trajectories

warnings.filterwarnings("ignore")

ROWS, SIZE, EPISODE = 4096, 128, 40
Call = Callable[[], object]


def medians_of(calls: dict[str, Call], repeats: int, warm_up: int = 2) -> dict[str, float]:
    """Median duration of each call, in microseconds."""
    found = medians_us(repeats, *calls.values(), warm_up=warm_up)
    return dict(zip(calls, found, strict=True))


def peak_bytes(call: Call) -> int:
    """Most memory that a call holds at once, beyond what was there before."""
    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    held = peak = 0
    for event in seen.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def lengths_near(mean: int, rows: int) -> list[int]:
    """Lengths between half and one and a half times their mean, that add up to the rows."""
    generator, found = torch.Generator().manual_seed(0), []
    while (left := rows - sum(found)) > 0:
        drawn = int(torch.randint(mean // 2, 3 * mean // 2 + 1, (1,), generator=generator))
        found.append(min(left, drawn))
    return found


def batch_of(cell: str, grid: tuple[int, int] | None) -> TensorDict:
    """Inputs, zero states, markers: flat rows of whole episodes, or a grid with resets inside."""
    batch = trajectories(lengths_near(EPISODE, ROWS))
    rows = TensorDict({"is_init": batch["is_init"], "next": batch["next"].select("done")}, [ROWS])
    if grid:
        rows = rows.reshape(*grid)
        rows["is_init"][:, 0] = True
    rows["x"] = torch.randn(*rows.batch_size, SIZE)
    for key in ("h", "c") if cell == "lstm" else ("h",):
        rows[key] = torch.zeros(*rows.batch_size, 1, SIZE)
    return rows


def module_of(package: Any, cell: str, backend: str) -> Any:
    """The same network from ours or from the peer."""
    states = ["h", "c"] if cell == "lstm" else ["h"]
    return getattr(package, f"{cell.upper()}Module")(
        input_size=SIZE,
        hidden_size=SIZE,
        in_keys=["x", *states, "is_init"],
        out_keys=["y", *(("next", key) for key in states)],
        recurrent_backend=backend,
    )


def training_call(module: Any, batch: TensorDict, mode: Any) -> Call:
    """Forward and backward over one batch, as a loss does it."""
    seen = torch.randn(*batch.batch_size, SIZE)

    def call() -> None:
        rows = batch.copy()
        rows["x"] = batch["x"].detach().requires_grad_()
        with mode(True):
            out = module(rows)["y"]
        torch.autograd.backward(out, seen)
        module.zero_grad()

    return call


def torch_call(network: nn.RNNBase, x: Tensor, segments: Segments | None) -> Call:
    """Forward and backward of torch's own network: packed, or dense if there are no segments."""
    seen = torch.randn(*x.shape[:-1], SIZE)
    lengths = None if segments is None else segments.lengths.tolist()

    def call() -> None:
        leaf = x.detach().requires_grad_()
        if lengths is None:
            out = network(leaf)[0]
        else:
            packed = nn.utils.rnn.pack_sequence(leaf.split(lengths), enforce_sorted=False)
            out, _ = nn.utils.rnn.pad_packed_sequence(network(packed)[0], batch_first=True)
            out = segments.unpad(out)  # type: ignore[union-attr]
        torch.autograd.backward(out, seen)
        network.zero_grad()

    return call


def show(title: str, found: dict[str, float], bars: dict[str, float]) -> None:
    """Print durations, their ratios to that of auto, and the bars that these are held to."""
    table(title, found, "ours, auto", {name: f"bar {bar:g}" for name, bar in bars.items()})


def ragged(cell: str, peer: Any, mode: Any, repeats: int) -> None:
    """Flat rows of episodes of many lengths."""
    batch = batch_of(cell, None)
    segments = Segments.of(batch)
    network: Any = (nn.LSTM if cell == "lstm" else nn.GRU)(SIZE, SIZE, batch_first=True)
    calls = {
        f"ours, {name}": training_call(module_of(ours, cell, name), batch, set_recurrent_mode)
        for name in ("auto", "pack", "pad", "scan")
    }
    calls["torch, packed"] = torch_call(network, batch["x"], segments)
    slow: dict[str, Call] = {}
    if peer is not None:
        calls["torchrl, pad"] = training_call(module_of(peer, cell, "pad"), batch, mode)
        slow["torchrl, scan"] = training_call(module_of(peer, cell, "scan"), batch, mode)
    found = {**medians_of(calls, repeats), **medians_of(slow, 1, warm_up=0)}  # it takes seconds
    bars = {"torchrl, pad": 3.0, "torchrl, scan": 100.0} if cell == "lstm" else {}
    bars = bars or {"torchrl, pad": 2.0, "torch, packed": 1.5}
    show(f"{cell}, flat [{ROWS}], episodes near {EPISODE}, H={SIZE}", found, bars)
    if cell == "lstm" and peer is not None:
        mine, theirs = (peak_bytes(calls[name]) for name in ("ours, auto", "torchrl, pad"))
        print(
            f"  peak memory: ours {mine / 1e6:.1f} MB, torchrl's pad {theirs / 1e6:.1f} MB, ",
            end="",
        )
        print(f"ratio {mine / theirs:.2f}  bar at most 0.5", flush=True)


def grid(cell: str, peer: Any, mode: Any, repeats: int) -> None:
    """Environments by steps, with resets inside."""
    batch = batch_of(cell, (32, 128))
    calls = {
        f"ours, {name}": training_call(module_of(ours, cell, name), batch, set_recurrent_mode)
        for name in ("auto", "pad")
    }
    slow: dict[str, Call] = {}
    if peer is not None:
        calls["torchrl, pad"] = training_call(module_of(peer, cell, "pad"), batch, mode)
        slow["torchrl, scan"] = training_call(module_of(peer, cell, "scan"), batch, mode)
    few = max(3, repeats // 5)
    found = {**medians_of(calls, repeats), **medians_of(slow, few, warm_up=1)}
    bar = 3.0 if cell == "lstm" else 2.0
    bars = {"torchrl, pad": bar, "torchrl, scan": bar}
    show(f"{cell}, [32, 128], resets near every {EPISODE}", found, bars)


def dense(cell: str, peer: Any, mode: Any, repeats: int) -> None:
    """Sequences of one length without resets, in the shape of torch."""
    x = torch.randn(64, 64, SIZE)
    kind, own = (nn.LSTM, ours.LSTM) if cell == "lstm" else (nn.GRU, ours.GRU)
    calls = {
        "ours, auto": torch_call(own(SIZE, SIZE), x, None),
        "torch, dense": torch_call(kind(SIZE, SIZE, batch_first=True), x, None),
    }
    show(f"{cell}, dense [64, 64]", medians_of(calls, 3 * repeats), {"torch, dense": 0.95})


@torch.no_grad()
def steps(cell: str, peer: Any, mode: Any, repeats: int) -> None:
    """One step in sequential mode, as a plan calls it, alongside the bare cell of torch."""
    bare: Any = (nn.LSTMCell if cell == "lstm" else nn.GRUCell)(SIZE, SIZE)
    module = module_of(ours, cell, "auto")
    for rows in (1, 64):
        x, flag = torch.randn(rows, SIZE), torch.zeros(rows, 1, dtype=torch.bool)
        states = [torch.randn(rows, SIZE) for _ in module.state_keys]
        stored = [state.unsqueeze(1) for state in states]
        given = tuple(states) if cell == "lstm" else states[0]
        calls: dict[str, Call] = {
            "torch, cell": lambda x=x, given=given: bare(x, given),  # type: ignore[misc]
            "ours, step": lambda x=x, stored=stored, flag=flag: module.step(x, *stored, flag),  # type: ignore[misc]
        }
        if importlib.util.find_spec("rl_envs") is not None:
            calls["ours, plan"] = plan_call(module, [x, *stored, flag])
        found = medians_of(calls, 100 * repeats, warm_up=50)
        bar = f"bar at most {1.5 if rows == 1 else 1.2} of the cell"
        print(f"\n{cell}, one step of {rows}")
        for name in list(found)[1:]:
            work = f"{cell}, one step of {rows}: {name}"
            report(work, found[name], found["torch, cell"], peer="torch, cell", note=bar)


def plan_call(module: Any, tensors: list[Tensor]) -> Call:
    """The module as one call of a policy plan."""
    from rl_envs.rollouts.policy_plan import policy_plan

    plan = policy_plan(module)
    values = {(key,): value for key, value in zip(module.in_keys, tensors, strict=True)}
    size = tensors[0].shape[:1]
    plan(values, size)
    return lambda: plan(values, size)


TABLES = {"ragged": ragged, "grid": grid, "dense": dense, "steps": steps}
CELLS = ("lstm", "gru")


def main(given: argparse.Namespace) -> None:
    """Print the tables that are asked for."""
    torch.manual_seed(0)
    torch.set_num_threads(given.threads)
    peer, mode = None, None
    if importlib.util.find_spec("torchrl") is not None:
        import torchrl.modules

        peer, mode = torchrl.modules, torchrl.modules.set_recurrent_mode
    for cell in [name for name in CELLS if name in given.names] or CELLS:
        for name in [name for name in TABLES if name in given.names] or TABLES:
            TABLES[name](cell, peer, mode, given.repeats)
    print("\nCUDA: not measured here; python benchmarks/gpu_*.py prints the table G1 to G6.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    hint = f"cells and tables: {[*CELLS, *TABLES]}; or all"
    parser.add_argument("names", nargs="*", help=hint)
    parser.add_argument("--repeats", type=int, default=12, help="calls after a median")
    parser.add_argument("--threads", type=int, default=2)
    with session(parser) as given:
        main(given)

# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "rl-collect", "rl-envs", "rl-layout", "rl-replay", "rl-specs", "rl-transforms",
#     "gymnasium", "matplotlib", "tensordict", "torch",
# ]
# ///
"""Ways to store next observations: what they cost, what comes back, how fast.

    python examples/memory_recipes.py

Each recipe collects the same steps, from CartPole and from an environment that shows 84 x 84 uint8
frames. The frames are synthetic: random pixels, so that no two are alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_collect import Collector
from rl_envs import EnvBase, GymEnv, SerialEnv, TransformedEnv
from rl_layout import keys
from rl_replay import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from rl_specs import Bounded, OneHot
from rl_transforms import NextObservationDelta, NextStateReconstructor, Transform

NEXT = ("next", "observation")
PER_BATCH = 400  # steps of a batch


@dataclass(frozen=True)
class Recipe:
    """One way to store next observations, on its way from the collector into a sample."""

    name: str
    wrap: Callable[[EnvBase], EnvBase] = lambda env: env
    collector: dict[str, Any] = field(default_factory=dict)
    storage: dict[str, Any] = field(default_factory=dict)
    rebuild: Callable[[], Transform | None] = lambda: None
    takes_integers: bool = True

    @property
    def played(self) -> tuple[Any, ...]:
        """What it asks of the collector; recipes that ask for the same share its batches."""
        return (self.wrap, *self.collector)


RECIPES = [
    Recipe("stored twice"),
    Recipe("lossless", storage={"lossless": True}),
    Recipe("compact_obs", collector={"compact_obs": True}, rebuild=NextStateReconstructor),
    Recipe(
        "compact, linked",  # the storage rebuilds what the collector left out
        collector={"compact_obs": True},
        storage={"lossless": ["observation"]},
    ),
    Recipe(
        "delta",
        wrap=lambda env: TransformedEnv(env, NextObservationDelta()),
        rebuild=lambda: NextObservationDelta(["observation"]),
        takes_integers=False,  # a difference of frames is as large as a frame
    ),
]


class Frames(EnvBase):
    """Shows random frames, in episodes of 50 to 150 steps that terminate or are truncated."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Bounded(0, 255, (84, 84), dtype=torch.uint8)
        self.action_spec = OneHot(4)
        self.generator = torch.Generator()

    def _draw(self, below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape, generator=self.generator)

    def _reset(self, tensordict: TensorDictBase | None, **_: Any) -> TensorDict:
        self.left = 50 + int(self._draw(101))
        return TensorDict({"observation": self._draw(256, 84, 84).to(torch.uint8)})

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.left -= 1
        over, is_limit = self.left == 0, bool(self._draw(2))
        after = {
            "observation": self._draw(256, 84, 84).to(torch.uint8),
            "reward": torch.ones(1),
            "terminated": torch.tensor([over and not is_limit]),
            "truncated": torch.tensor([over and is_limit]),
        }
        return TensorDict(after)

    def _set_seed(self, seed: int) -> None:
        self.generator.manual_seed(seed)


def play(recipe: Recipe, make_env: Callable[[], EnvBase], steps: int) -> list[TensorDictBase]:
    """Collect steps with random actions; the same ones whatever the recipe."""
    torch.manual_seed(0)
    env = recipe.wrap(SerialEnv(4, make_env))
    env.set_seed(0)
    options = {"frames_per_batch": PER_BATCH, "total_frames": steps, "producer": 0}
    return list(Collector(env, **options, **recipe.collector))


class Stored:
    """A recipe at work: its buffer, and how long writing and sampling took."""

    def __init__(self, recipe: Recipe, batches: list[TensorDictBase]) -> None:
        self.recipe, self.batches, self.writing, self.sampling = recipe, batches, [], []
        self.buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(len(batches) * PER_BATCH, **recipe.storage),
            sampler=SliceSampler(slice_len=32),
            transform=recipe.rebuild(),
            batch_size=256,
            generator=torch.Generator().manual_seed(0),
        )

    def write(self, number: int) -> None:
        """Store one batch of the collector."""
        start = time.perf_counter()
        self.buffer.extend(self.batches[number])
        self.writing.append(time.perf_counter() - start)

    def sample(self) -> None:
        """Draw 256 rows, in slices of 32."""
        start = time.perf_counter()
        self.buffer.sample()
        self.sampling.append(time.perf_counter() - start)

    @property
    def bytes_per_step(self) -> float:
        """What a step costs: its row, its link, and its share of the overflow table."""
        cost = self.buffer.storage.store.explain(len(self.buffer))
        return cost["row_bytes"] + 4 + cost.get("side_bytes", 0) / len(self.buffer)


@dataclass(frozen=True)
class Result:
    """What a recipe costs, and what comes back."""

    name: str
    bytes_per_step: float  # with what is secured for the overflow table
    equal: float  # share of next observations that are the true ones, bit for bit
    missing: float  # share that is marked as missing
    error: float  # the largest, where none is missing
    write_us: float  # a step
    sample_us: float  # 256 rows


def result_of(stored: Stored, truth: TensorDictBase) -> Result:
    """Compare all that comes back with what was seen, row by row."""
    rows = stored.buffer[:]
    if not torch.equal(rows["observation"], truth["observation"]):
        raise RuntimeError(f"{stored.recipe.name} collected other steps: compare like with like.")
    found, wanted = rows[NEXT], truth[NEXT]
    missing = rows.get(keys.NEXT_MISSING, torch.zeros(len(rows), dtype=torch.bool))
    equal = (found == wanted).flatten(1).all(1)
    off = (found.double() - wanted.double()).flatten(1).abs().amax(1)
    return Result(
        stored.recipe.name,
        stored.bytes_per_step,
        float(equal.double().mean()),
        float(missing.double().mean()),
        float(off[~missing].max()),
        statistics.median(stored.writing) * 1e6 / PER_BATCH,
        statistics.median(stored.sampling) * 1e6,
    )


def compare(make_env: Callable[[], EnvBase], steps: int, rounds: int) -> list[Result]:
    """Store the same steps by each recipe, in turn, and look at what comes back."""
    is_integer = not make_env().observation_spec["observation"].dtype.is_floating_point
    recipes = [recipe for recipe in RECIPES if recipe.takes_integers or not is_integer]
    played: dict[Any, list[TensorDictBase]] = {}
    for recipe in recipes:
        if recipe.played not in played:
            played[recipe.played] = play(recipe, make_env, steps)
    all_stored = [Stored(recipe, played[recipe.played]) for recipe in recipes]
    for number in range(steps // PER_BATCH):
        for stored in all_stored:
            stored.write(number)
    for _ in range(rounds):
        for stored in all_stored:
            stored.sample()
    truth = all_stored[0].buffer[:]
    return [result_of(stored, truth) for stored in all_stored]


def table(results: list[Result]) -> str:
    """Lay results out in columns."""
    head = f"{'recipe':16}{'bytes a step':>13}{'of twice':>10}{'exact':>9}{'missing':>9}"
    lines = [f"{head}{'error':>10}{'write a step':>14}{'sample 256':>12}"]
    for one in results:
        share = one.bytes_per_step / results[0].bytes_per_step
        lines.append(
            f"{one.name:16}{one.bytes_per_step:13,.1f}{share:10.0%}{one.equal:9.1%}"
            f"{one.missing:9.1%}{one.error:10.2g}{one.write_us:11.1f} us{one.sample_us:9.0f} us"
        )
    return "\n".join(lines)


def draw(found: dict[str, list[Result]], path: Path) -> None:
    """Draw the bytes of a step, and how many next observations are the true ones."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    for axes, (name, results) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        bars = axes.barh([one.name for one in results], [one.bytes_per_step for one in results])
        axes.bar_label(bars, [f"{one.equal:.1%} exact" for one in results], padding=3)
        axes.set(title=name, xlabel="bytes a step", xlim=(0, 1.6 * results[0].bytes_per_step))
        axes.invert_yaxis()
    figure.savefig(path)


def main() -> None:
    """Compare the recipes on both environments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200_000, help="of CartPole")
    parser.add_argument("--frames", type=int, default=4_000, help="steps that show frames")
    parser.add_argument("--rounds", type=int, default=200, help="samples to time")
    parser.add_argument("--out", type=Path, default=Path("runs/memory_recipes"))
    options = parser.parse_args()
    if min(options.steps, options.frames, options.rounds) < 1:
        parser.error("--steps, --frames and --rounds must be at least 1")
    torch.set_num_threads(1)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"memory_recipes: cannot write to {options.out}: {error}") from None
    found = {
        "CartPole-v1": compare(lambda: GymEnv("CartPole-v1"), options.steps, options.rounds),
        "84 x 84 uint8 frames": compare(Frames, options.frames, options.rounds),
    }
    for name, results in found.items():
        print(f"{name}\n{table(results)}\n")
    draw(found, options.out / "bytes.png")
    print(f"chart: {options.out / 'bytes.png'}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("memory_recipes: interrupted, nothing is kept") from None

"""Exceptions in the middle of every write: what can be read afterwards was written whole.

Run with `nox -s faults`, or as a script: `--seconds 100 --seed 3`. One call of a buffer is
interrupted at one line of our sources, as Ctrl-C interrupts it. Then every row that `sample` and
indexing give must be one that was written, bit for bit, with its own next observation; links and
the index of trajectories must be those of a plain loop over the rows; and the next writes must
work. Rows that a transform holds back stand as before the call, or as after it: the same call made
again leaves what an uninterrupted call leaves.

Without `--seconds` every line of every scenario is tried. With `--twice` a call in the middle fails
and the code that recovers from it is interrupted as well. The exit status is 1 where one failed.
"""

from __future__ import annotations

import argparse
import contextlib
import linecache
import random
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from tensordict import TensorDict

from rl_replay import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer, Sampler
from rl_replay.storages import TensorStorage
from rl_slabs.lanes.lane import LANE_SHIFT
from rl_transforms import MultiStepTransform

OURS = ("/rl_replay/", "/rl_slabs/", "/rl_transforms/", "/rl_layout/")
CAPACITY, OLD, EPISODE, ENVS = 24, 31, 7, 3
NEWER = 1000  # what a later version of a row adds to its value
N_STEPS, GAMMA = 3, 0.5
NEVER = ("__exit__", "release", "close")  # calls that are not made to fail
STEPS, ORIGINAL = ("next", "steps_to_next_obs"), ("next", "original_reward")


class Interrupt(BaseException):
    """What Ctrl-C raises, but for its name."""


def rows(first: int, count: int) -> TensorDict:
    """Rows `[count]` of which every leaf follows from the number."""
    number = torch.arange(first, first + count)
    step = number % EPISODE
    ended = (step == EPISODE - 1).unsqueeze(-1)
    observation = observation_of(number)
    return TensorDict(
        {
            "number": number,
            "observation": observation,
            "frame": (number % 251).to(torch.uint8).unsqueeze(-1).expand(count, 300).contiguous(),
            "value": number.double(),
            "negated": -number.double(),
            "is_init": (step == 0).unsqueeze(-1),
            "collector": {"traj_ids": number // EPISODE, "traj_step": step},
            "next": {
                "observation": torch.where(ended, -observation, observation_of(number + 1)),
                "reward": number.double().unsqueeze(-1),
                "terminated": ended,
                "truncated": torch.zeros_like(ended),
                "done": ended,
            },
        },
        [count],
    )


def observation_of(number: torch.Tensor) -> torch.Tensor:
    """The observation of rows with these numbers, `[N, 3]`."""
    return torch.stack([number * 2.0 + 1, number / 3.0, number.float().sin()], -1)


def table(first: int, count: int) -> TensorDict:
    """Rows `[ENVS, count]` of as many environments at once."""
    return torch.stack([rows(10_000 * EPISODE * env + first, count) for env in range(ENVS)], 0)


def far_row(number: int, steps: int) -> TensorDict:
    """A row `[1]` that reaches some steps ahead."""
    row, last = rows(number, 1), rows(number + steps - 1, 1)
    reward = sum(GAMMA**step * (number + step) for step in range(steps))
    row["next"] = last["next"].set("reward", torch.tensor([[reward]], dtype=torch.float64))
    row[ORIGINAL] = torch.tensor([[number]], dtype=torch.float64)
    row[STEPS] = torch.tensor([[steps]])
    return row


def reach(number: int) -> int:
    """How many steps a row reaches whose trajectory is there up to its end."""
    return min(N_STEPS, EPISODE - number % EPISODE)


def problems(found: TensorDict) -> list[str]:
    """The rows that were never written, a line each."""
    found = found.reshape(-1)
    numbers = found["number"]
    steps = found.get(STEPS, None)
    made = [
        rows(number, 1) if steps is None else far_row(number, int(steps[place]))
        for place, number in enumerate(numbers.tolist())
    ]
    wanted, lines = torch.cat(made) if made else found, []
    if steps is not None:
        lines += [
            f"row {number} reaches {int(step)} steps"
            for number, step in zip(numbers.tolist(), steps, strict=True)
            if not 0 < step <= reach(number)
        ]
    for key in wanted.keys(True, True):
        ours, theirs = found[key], wanted[key]
        if key == "value":
            ours = torch.where(ours >= numbers + NEWER, ours - NEWER, ours)
        if key == "negated":
            theirs = -found["value"]
        wrong = (ours != theirs).reshape(len(found), -1).any(-1)
        lines += [f"row {n}: {key} is another row's" for n in numbers[wrong].tolist()]
    return lines


def wrong_links(buffer: ReplayBuffer, *, settled: bool) -> list[str]:
    """Links that a loop over all rows would not find, or finds and that are missing.

    Args:
        buffer: The buffer.
        settled: Whether the last write ended: the writers of a shared buffer keep its index.
    """
    storage = buffer.storage
    assert isinstance(storage, TensorStorage)
    window = storage.ring.window()
    row_ids = window.numbers(torch.arange(len(window)))
    positions = storage.ring.positions(row_ids)
    cells = storage.read_keys(positions, ["number"])
    place = {}
    lines = []
    for row_id, position, number in zip(
        row_ids.tolist(), positions.tolist(), cells["number"].tolist(), strict=True
    ):
        before = place.get((row_id >> LANE_SHIFT, number - 1))
        distance = 0 if before is None or number % EPISODE == 0 else row_id - before
        place[row_id >> LANE_SHIFT, number] = row_id
        if int(storage.back[position]) != distance and (
            distance or row_id - int(storage.back[position]) >= window.first[row_id >> LANE_SHIFT]
        ):
            lines.append(f"row {number} continues {storage.back[position]} before, not {distance}")
    if not lines and len(window) and (settled or not storage.is_shared):
        storage.trajectories().check(storage.back)
    return lines


@dataclass(frozen=True)
class Scenario:
    """One call, and the buffer that it is made on.

    Attributes:
        name: What it is called in the output.
        make: A buffer with `OLD` rows.
        call: What is interrupted.
        more: Rows `[count]` from a number on, as the buffer takes them.
        newest: The newest row that must be stored after `more`, given the same; None for none.
    """

    name: str
    make: Callable[[], ReplayBuffer]
    call: Callable[[ReplayBuffer], Any]
    more: Callable[[int, int], TensorDict] = rows
    newest: Callable[[int, int], int | None] = lambda first, count: first + count - 1


def check(buffer: ReplayBuffer, *, settled: bool = True) -> list[str]:
    """What is wrong with the rows of a buffer, a line each; see `wrong_links`."""
    if not len(buffer):
        return []
    found = buffer[:]
    numbers = found["number"].reshape(-1)
    lines = problems(found) + problems(buffer.sample(40))
    if len(numbers.unique()) != len(numbers):
        lines.append(f"rows come twice: {numbers.tolist()}")
    return lines + wrong_links(buffer, settled=settled)


def trial(scenario: Scenario, place: int, second: int | None = None) -> list[str]:
    """Interrupt a call at a line, and say what is wrong afterwards.

    With a `second` line the call number `place` fails, and what recovers from it at that line.
    """
    buffer = scenario.make()
    once = interrupting(place) if second is None else interrupting_twice(place, second)
    with contextlib.suppress(Interrupt), once:
        scenario.call(buffer)
    lines = []
    try:
        lines += [f"after the interrupt: {line}" for line in check(buffer, settled=False)]
        # rows held back may be lost to a second exception, none is made up
        if second is None and holds_back(buffer):
            lines += again(scenario, buffer)
        for first, count in ((700, 2), (707, 5), (721, 7)):
            buffer.extend(scenario.more(first, count))
            newest = scenario.newest(first, count)
            found = check(buffer, settled=newest is not None)
            lines += [f"after {count} more rows: {line}" for line in found]
            if newest is not None and not (buffer[:]["number"] == newest).any():
                lines.append(f"after {count} more rows these are not there")
        if getattr(buffer.storage, "takes_turns", False):
            lines += by_another_thread(lambda: buffer.extend(scenario.more(735, 3)))
    except (Exception, AssertionError):
        lines.append(f"a check or the next write fails: {traceback.format_exc()[-900:]}")
    return lines


def holds_back(buffer: ReplayBuffer) -> bool:
    """Whether rows wait in a transform for those ahead of them."""
    return any(isinstance(one, MultiStepTransform) for one in buffer.transform)


def again(scenario: Scenario, buffer: ReplayBuffer) -> list[str]:
    """What differs from an uninterrupted call, once the call was made or made again."""
    former, whole = scenario.make(), scenario.make()
    scenario.call(whole)
    if same_rows(buffer, former):
        scenario.call(buffer)
    if same_rows(buffer, whole):
        return []
    numbers = [one[:]["number"].flatten().tolist() for one in (buffer, whole)]
    return [f"made again, the call leaves {numbers[0]}, not {numbers[1]}, or other rows held back"]


def same_rows(one: ReplayBuffer, other: ReplayBuffer) -> bool:
    """Whether two buffers hold the same newest rows, and hold back the same."""
    stored = [buffer[:].reshape(-1)[-N_STEPS:].to_dict() for buffer in (one, other)]
    held = [
        None if transform.held is None else transform.held.to_dict()
        for buffer in (one, other)
        for transform in buffer.transform
    ]
    return all(same_trees(*pair) for pair in (stored, held))


def same_trees(one: Any, other: Any) -> bool:
    """Whether two dictionaries of tensors, or nothing at all, are equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_trees(one[k], other[k]) for k in one)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return one is None and other is None


def by_another_thread(call: Callable[[], Any]) -> list[str]:
    """What hinders another thread from doing something."""
    failures: list[str] = []

    def attempt() -> None:
        try:
            call()
        except Exception as error:
            failures.append(f"another thread cannot write: {error!r}")

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(40.0)
    return [*failures, "another thread waits forever"] if thread.is_alive() else failures


@contextlib.contextmanager
def interrupting(place: int) -> Iterator[list[str]]:
    """Raise at the line of ours that is executed as number `place`; -1 for none, to count them.

    A line of a `with` is passed over where it is left: an exception between the last line inside
    and the call of `__exit__` is no interrupt that there can be, only one of tracing. So is a
    `try:`, where nothing is done, and what a `finally:` calls first if that is a call of C, which
    Python makes before it looks for Ctrl-C: the release of the lock of `claim_lock` within a
    process, and the close of a descriptor.
    """
    seen: list[str] = []

    def noted(line: str) -> bool:
        seen.append(line)
        return len(seen) == place + 1

    sys.settrace(tracer(noted))
    try:
        yield seen
    finally:
        sys.settrace(None)


@contextlib.contextmanager
def interrupting_twice(first: int, second: int) -> Iterator[list[str]]:
    """Raise in the call that is made as number `first`, and at a line of what recovers from it.

    The first one is of a function that one of ours calls, as where a tensor cannot be read or a
    file ends; so what ends a `with` or releases a lock is passed over. The second one is at line
    number `second` among our lines executed after it; -1 for none. What is yielded
    holds the call, then the lines.
    """
    seen: list[str] = []
    calls = 0

    def profile(frame: FrameType, event: str, called: Any) -> None:
        nonlocal calls
        name = None if seen else our_call(frame, event, called)
        if name is not None:
            calls += 1
            if calls == first + 1:
                seen.append(name)
                raise Interrupt

    def noted(line: str) -> bool:
        if seen:
            seen.append(line)
        return len(seen) == second + 2 > 1

    sys.settrace(tracer(noted, fails=True))
    sys.setprofile(profile)
    try:
        yield seen
    finally:
        sys.setprofile(None)
        sys.settrace(None)


def our_call(frame: FrameType, event: str, called: Any) -> str | None:
    """What a function of ours calls and where, as a profiler is told; None for other events."""
    caller = frame if event == "c_call" else frame.f_back
    if event not in ("call", "c_call") or caller is None or not is_ours(caller):
        return None
    name = called.__name__ if event == "c_call" else frame.f_code.co_name
    return None if name in NEVER else f"{name} called at {place_of(caller)}"


def count_calls(scenario: Scenario) -> int:
    """How many calls of functions of ours there are that can fail."""
    buffer, found = scenario.make(), 0

    def profile(frame: FrameType, event: str, called: Any) -> None:
        nonlocal found
        found += our_call(frame, event, called) is not None

    sys.setprofile(profile)
    try:
        scenario.call(buffer)
    finally:
        sys.setprofile(None)
    return found


def is_ours(frame: FrameType) -> bool:
    """Whether the code of a frame is of the packages that write rows."""
    return any(part in frame.f_code.co_filename for part in OURS)


def place_of(frame: FrameType) -> str:
    """File and line, to be printed."""
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def tracer(
    noted: Callable[[str], bool], *, fails: bool = False
) -> Callable[[FrameType, str, Any], Any]:
    """What raises at the line of ours for which `noted` says so; see `interrupting`.

    Where the call `fails` before, the line of a `with` of several parts comes once for each part
    that is left, and not at all for others.
    """
    withs: set[tuple[FrameType, int]] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal withs
        if not is_ours(frame):
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and line.startswith("with "):
            left = (frame, frame.f_lineno) in withs
            entered = {(frame, frame.f_lineno)}
            withs = withs | entered if fails else withs ^ entered
            if left:
                return trace
        if line.startswith(("if held:", "_in_process.release()", "os.close(descriptor)", "try:")):
            return trace
        if event == "line" and noted(place_of(frame)):
            raise Interrupt
        return trace

    return trace


def of(
    storage: Callable[[], Any],
    *,
    transform: Callable[[], MultiStepTransform] | None = None,
    sampler: Callable[[], Sampler] | None = None,
    **options: Any,
) -> Callable[[], ReplayBuffer]:
    """Make a buffer with rows that have gone once round."""

    def make() -> ReplayBuffer:
        parts = {
            name: None if part is None else part()
            for name, part in (("transform", transform), ("sampler", sampler))
        }
        buffer = ReplayBuffer(storage=storage(), batch_size=5, **parts, **options)
        for first in range(0, OLD, 5):
            buffer.extend(rows(first, min(5, OLD - first)))
        return buffer

    return make


def with_columns(transform: MultiStepTransform | None = None) -> ReplayBuffer:
    """A buffer of two dimensions that has gone once round."""
    storage = LazyTensorStorage(CAPACITY, ndim=2)
    buffer = ReplayBuffer(storage=storage, batch_size=5, transform=transform)
    for first in range(0, 11, 3):
        buffer.extend(table(first, min(3, 11 - first)))
    return buffer


def ahead(*, columns: bool = False) -> MultiStepTransform:
    """n-step rows."""
    return MultiStepTransform(N_STEPS, GAMMA, columns=columns)


def newest_ahead(first: int, count: int) -> int | None:
    """The newest of some rows that does not wait for others."""
    whole = [n for n in range(first, first + count) if n + reach(n) <= first + count]
    return max(whole, default=None)


def newest_column(first: int, count: int) -> int | None:
    """The newest row of which `N_STEPS - 1` more steps of its environment are there."""
    return first + count - N_STEPS if count >= N_STEPS else None


def update(buffer: ReplayBuffer) -> None:
    """Write two leaves of a sample back in a later version."""
    batch = buffer[3:9]
    value = batch["value"] + NEWER
    both = TensorDict({"value": value, "negated": -value}, [len(value)])
    row_ids = buffer.storage.ring.numbers_at(torch.arange(3, 9))
    buffer.update_rows(row_ids, both)


def replace(buffer: ReplayBuffer) -> None:
    """Write whole rows in a later version, markers and all."""
    batch = buffer[3:9]
    value = batch["value"] + NEWER
    buffer[3:9] = batch.set("value", value).set("negated", -value)


def load(folder: Path) -> Callable[[ReplayBuffer], None]:
    """Load a dump of other rows."""
    return lambda buffer: buffer.loads(folder)


def scenarios(folder: Path) -> list[Scenario]:
    """Every call on every kind of buffer."""
    kinds = {
        "private": of(lambda: LazyTensorStorage(CAPACITY)),
        "lossless": of(lambda: LazyTensorStorage(CAPACITY, lossless=True)),
        "shared": of(lambda: LazyTensorStorage(2 * CAPACITY, lanes=2), shared=True),
        "shared lossless": of(
            lambda: LazyTensorStorage(2 * CAPACITY, lanes=2, lossless=True), shared=True
        ),
        "mapped": of(lambda: LazyMemmapStorage(CAPACITY)),
        "mapped lossless": of(lambda: LazyMemmapStorage(CAPACITY, lossless=True)),
    }
    found = []
    for kind, make in kinds.items():
        other = make()
        other.extend(rows(350, 11))
        other.dumps(folder / kind)
        state = other.state_dict()
        calls: dict[str, Callable[[ReplayBuffer], Any]] = {
            "extend": lambda buffer: buffer.extend(rows(OLD, 11)),
            "extend after all": lambda buffer: (buffer.empty(), buffer.extend(rows(400, 11))),
            "add": lambda buffer: buffer.add(rows(OLD, 1)[0]),
            "update_rows": update,
            "empty": lambda buffer: buffer.empty(),
            "loads": load(folder / kind),
            "load_state_dict": lambda buffer, state=state: buffer.load_state_dict(state),
        }
        if not kind.startswith("shared"):
            calls["set"] = replace
        found += [Scenario(f"{kind}: {name}", make, call) for name, call in calls.items()]
    found += held_scenarios()
    found.append(
        Scenario(
            "two dimensions: extend",
            with_columns,
            lambda buffer: buffer.extend(table(11, 3)),
            table,
        )
    )
    return found + [
        Scenario(f"{kind}: first extend", fresh, lambda buffer: buffer.extend(rows(0, 9)))
        for kind, fresh in {
            "private": lambda: ReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=5),
            "mapped lossless": lambda: ReplayBuffer(
                storage=LazyMemmapStorage(CAPACITY, lossless=True), batch_size=5
            ),
        }.items()
    ]


def held_scenarios() -> list[Scenario]:
    """Writes through a transform that holds rows back."""
    kinds: dict[str, Callable[[], Any]] = {
        "private": lambda: LazyTensorStorage(CAPACITY),
        "lossless": lambda: LazyTensorStorage(CAPACITY, lossless=True),
    }
    calls: dict[str, Callable[[ReplayBuffer], Any]] = {
        "extend": lambda buffer: buffer.extend(rows(OLD, 11)),
        "add": lambda buffer: buffer.add(rows(OLD, 1)[0]),
        "held whole": lambda buffer: buffer.extend(rows(70_000, 2)),
    }
    found = [
        Scenario(f"n-step {kind}: {name}", of(storage, transform=ahead), call, newest=newest_ahead)
        for kind, storage in kinds.items()
        for name, call in calls.items()
    ]
    shared = of(lambda: LazyTensorStorage(2 * CAPACITY, lanes=2), shared=True, transform=ahead)
    found.append(Scenario("n-step shared: extend", shared, calls["extend"], newest=newest_ahead))
    return [
        *found,
        Scenario(
            "n-step columns: extend",
            lambda: with_columns(ahead(columns=True)),
            lambda buffer: buffer.extend(table(11, 3)),
            table,
            newest_column,
        ),
    ]


def sweep_twice(seed: int, *, only: str = "", most: int = 25, few: int | None = None) -> int:
    """Let calls fail and interrupt what recovers from it; return how many trials failed.

    Args:
        seed: Which calls and lines are tried.
        only: Scenarios whose name has this in it.
        most: Calls of each scenario; for each up to three lines of what recovers from it.
        few: So many scenarios, drawn by the seed; all unless given.
    """
    generator, failed, tried, known = random.Random(seed), 0, 0, 0
    with tempfile.TemporaryDirectory() as name:
        listed = [one for one in scenarios(Path(name)) if only in one.name]
        for scenario in generator.sample(listed, few) if few else listed:
            calls, bad, count = count_calls(scenario), 0, 0
            for place in generator.sample(range(calls), min(most, calls)):
                buffer = scenario.make()
                with contextlib.suppress(Interrupt), interrupting_twice(place, -1) as seen:
                    scenario.call(buffer)
                first, *behind = seen
                for second in generator.sample(range(len(behind)), min(3, len(behind))):
                    lines, count = trial(scenario, place, second), count + 1
                    if lines:
                        bad += 1
                        where = f"{first}, then {behind[second]} ({place}, {second})"
                        sys.stdout.write(f"  {scenario.name}: {where}: {lines[:3]}\n")
            tried, failed, known = tried + count, failed + bad, known + calls
            sys.stdout.write(f"{scenario.name}: {count} pairs of {calls} calls, {bad} failed\n")
            sys.stdout.flush()
    sys.stdout.write(
        f"inject twice: {tried} pairs of {known} calls, {failed} failed, seed {seed}\n"
    )
    return failed


def sweep(
    seconds: float | None,
    seed: int,
    *,
    only: str = "",
    most: int | None = None,
    few: int | None = None,
    once: bool = False,
    listed: Callable[[Path], list[Any]] = scenarios,
    judge: Callable[[Any, int], list[str]] = trial,
) -> int:
    """Try lines of scenarios, print the figures, and return how many trials failed.

    Args:
        seconds: How long in all; every line unless given.
        seed: Which lines are tried, and in which order.
        only: Scenarios whose name has this in it.
        most: Lines of each scenario.
        few: So many scenarios, drawn by the seed; all unless given.
        once: Each line of our sources that a scenario runs when it is run first and last, not
            every time.
        listed: Makes the scenarios, with what they keep in a folder.
        judge: Interrupts a scenario at a line, and says what is wrong afterwards.
    """
    generator, failed, tried, known = random.Random(seed), 0, 0, 0
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        chosen = [one for one in listed(Path(name)) if only in one.name]
        chosen = generator.sample(chosen, few) if few else chosen
        for number, scenario in enumerate(chosen):
            buffer = scenario.make()
            with interrupting(-1) as seen:
                scenario.call(buffer)
            places = list(range(len(seen)))
            if once:
                first = {line: place for place, line in reversed(list(enumerate(seen)))}
                last = {line: place for place, line in enumerate(seen)}
                places = sorted({*first.values(), *last.values()})
            known += len(places)
            generator.shuffle(places)
            end = None if seconds is None else begin + seconds * (number + 1) / len(chosen)
            count = bad = 0
            for place in places[:most]:
                if end is not None and count and time.monotonic() > end:
                    break
                lines, count = judge(scenario, place), count + 1
                if lines:
                    bad += 1
                    sys.stdout.write(f"  {scenario.name} at {seen[place]} ({place}): {lines[:3]}\n")
            tried, failed = tried + count, failed + bad
            sys.stdout.write(f"{scenario.name}: {count} of {len(places)} lines, {bad} failed\n")
            sys.stdout.flush()
    sys.stdout.write(f"inject: {tried} of {known} lines, {failed} failed, seed {seed}\n")
    return failed


def options_of(about: str | None) -> argparse.Namespace:
    """Read what the command line says of a sweep."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument(
        "--seconds", type=float, default=None, help="time in all; every line unless given"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--only", default="", help="scenarios whose name has this in it")
    parser.add_argument("--most", type=int, default=None, help="lines of each scenario")
    parser.add_argument(
        "--once", action="store_true", help="each line of the sources first and last, not always"
    )
    parser.add_argument(
        "--twice", action="store_true", help="a call fails, and what recovers is interrupted"
    )
    return parser.parse_args()


def main() -> int:
    """Read the arguments, and run."""
    options = options_of(__doc__)
    if options.twice:
        return int(sweep_twice(options.seed, only=options.only, most=options.most or 25) > 0)
    found = sweep(
        options.seconds, options.seed, only=options.only, most=options.most, once=options.once
    )
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())

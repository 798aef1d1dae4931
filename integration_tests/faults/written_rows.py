"""Rows that follow from their numbers, and what is wrong with those that a buffer holds."""

from __future__ import annotations

import torch
from tensordict import TensorDict

from rl_replay import ReplayBuffer
from rl_replay.storages import TensorStorage
from rl_slabs.lanes.lane import LANE_SHIFT

CAPACITY, OLD, EPISODE, ENVS = 24, 31, 7, 3
NEWER = 1000  # what a later version of a row adds to its value
N_STEPS, GAMMA = 3, 0.5
STEPS, ORIGINAL = ("next", "steps_to_next_obs"), ("next", "original_reward")


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

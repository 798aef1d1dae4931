"""What a collector made is written for others as it comes, and reads back bit for bit."""

import pytest
import torch

from rl_collect import Collector
from rl_datasets import (
    LeRobotExperienceReplay,
    MinariExperienceReplay,
    to_lerobot,
    to_minari,
)
from rl_envs import GymEnv, SerialEnv
from rl_layout import check_layout

KEYS = ["observation", "action", ("next", "observation"), ("next", "reward"), "is_init"]
KEYS += [("next", name) for name in ("terminated", "truncated", "done")]
FORMATS = {
    "minari": (to_minari, MinariExperienceReplay, "demo/poles-v0"),
    "lerobot": (to_lerobot, LeRobotExperienceReplay, "demo/poles"),
}


def noted(collector, into):
    """The batches of a collector, whose rows are noted as they come."""
    for batch in collector:
        into.extend(batch.clone().reshape(-1).unbind(0))
        yield batch


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("name", FORMATS)
def test_steps_straight_from_a_collector_come_back_bit_for_bit(tmp_path, name, envs):
    """Trajectories run over the seams of batches, and the last ones are cut where it stops."""
    write, read, dataset = FORMATS[name]
    env = GymEnv("CartPole-v1") if envs == 1 else SerialEnv(envs, lambda: GymEnv("CartPole-v1"))
    env.set_seed(0)
    rows = []
    with Collector(env, frames_per_batch=30, total_frames=300) as collector:
        folder = write(noted(collector, rows), dataset, root=tmp_path / "files")
    found = read(dataset, path=folder, root=tmp_path / "rows", verbose=False)[:]
    assert len(found) == len(rows) == 300
    assert not check_layout(found).findings

    made = {}  # by trajectory and step
    for row in rows:
        made[int(row["collector", "traj_ids"]), int(row["collector", "traj_step"])] = row
    by_first = {
        tuple(row["observation"].tolist()): id_ for (id_, step), row in made.items() if not step
    }
    id_ = None
    for row in found:
        step = int(row["collector", "traj_step"])
        id_ = by_first.pop(tuple(row["observation"].tolist())) if step == 0 else id_
        expected = made.pop((id_, step))
        for key in KEYS:
            assert torch.equal(row[key], expected[key]), (key, id_, step)
            assert row[key].dtype == expected[key].dtype
    assert not made

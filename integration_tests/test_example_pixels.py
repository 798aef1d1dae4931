"""The example of DQN from pixels: its game by hand, its rows byte for byte, a shortened run."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import sys

import pytest
import torch

from rl_collect import Collector
from rl_envs.testing import check_conformance
from rl_record import read_run
from test_example_actors import played
from test_examples import load

STACKS = ["stacked_observation", ("next", "stacked_observation")]


@pytest.fixture(scope="module")
def pixels():
    yield load("dqn_atari_path")
    del sys.modules["dqn_atari_path"]


def test_the_built_in_game_is_an_environment_like_others(pixels):
    check_conformance(pixels.Catch)


def test_balls_are_caught_by_going_where_they_fall(pixels):
    env = pixels.Catch(balls=7)
    env.set_seed(3)
    root, total, seen = env.reset(), 0.0, []
    while True:
        off = env.column + pixels.BALL // 2 - (env.paddle + pixels.PADDLE // 2)
        root["action"] = torch.arange(3) == 1 + (off > 3) - (off < -3)
        after = env.step(root)["next"]
        seen.append(after["observation"])
        total += float(after["reward"])
        if after["done"]:
            break
        root = after.clone()
    assert len(seen) == 7 * 12  # a ball falls 72 pixels
    assert total > 3  # some fall faster than the paddle goes
    assert torch.stack(seen).eq(255).sum((1, 2, 3)).eq(36).all()


def test_a_paddle_that_stays_misses_what_falls_beside_it(pixels):
    env = pixels.Catch(balls=40)
    env.set_seed(1)
    batch = env.rollout(480, lambda td: td.set("action", torch.arange(3) == 1))
    rewards = batch["next", "reward"][batch["next", "reward"] != 0]
    assert len(rewards) == 40
    assert -1 < rewards.mean() < 0  # 18 of 84 pixels


def test_each_frame_is_stored_once_and_stacks_come_back(pixels, tmp_path):
    settings = pixels.Settings(capacity=900, batch_size=64)
    env = pixels.make_env(pixels.CATCH, 4)
    batch = Collector(env, frames_per_batch=800).next().reshape(-1)
    buffer = pixels.make_buffer(settings, tmp_path)
    buffer.extend(batch)
    assert (tmp_path / "rows.slab").stat().st_size < 7300 * 900  # 84 * 84 and markers
    index = {
        (traj, step): row
        for row, (traj, step) in enumerate(
            zip(
                *(batch["collector", key].tolist() for key in ("traj_ids", "traj_step")),
                strict=True,
            )
        )
    }
    for _ in range(5):
        sample = buffer.sample()
        place = zip(
            *(sample["collector", key].tolist() for key in ("traj_ids", "traj_step")), strict=True
        )
        wanted = batch[torch.tensor([index[key] for key in place])]
        for key in STACKS:
            assert sample[key].dtype == torch.uint8
            assert torch.equal(sample[key], wanted[key])
    again = pixels.make_buffer(settings, tmp_path, resume=True)
    assert torch.equal(again[:]["stacked_observation"], batch["stacked_observation"])


def test_what_stacks_take_is_compared(pixels, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dqn_atari_path", "--compare", "--steps", "800"])
    threads = torch.get_num_threads()
    pixels.main()
    torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    sizes = [int(line.split(": ")[1].split(" bytes")[0].replace(",", "")) for line in lines]
    assert [line.split(":")[0] for line in lines] == [
        "stacks",
        "frames, next ones too",
        "frames, once",
    ]
    assert sizes[0] > 3.9 * sizes[1] > 7 * sizes[2]


def test_dqn_goes_on_from_its_checkpoint_and_its_rows(pixels, tmp_path):
    given = ["--out", tmp_path, "--seeds", 3, "--capacity", 2000]
    first = played("dqn_atari_path", "--steps", 1280, *given)
    assert "over 10 episodes after 1280 steps" in first
    state = torch.load(tmp_path / "seed-3" / "checkpoint.pt", weights_only=True)
    assert state["steps"] == 1280
    again = played("dqn_atari_path", "--steps", 1408, "--resume", *given)
    assert "over 10 episodes after 1408 steps" in again
    settings = pixels.Settings(capacity=2000)
    rows = pixels.make_buffer(settings, tmp_path / "seed-3" / "rows", resume=True)
    assert len(rows) == 1408
    run = read_run(tmp_path / "seed-3")
    assert run["loss"].steps.tolist() == list(range(1024, 1409, 64))
    assert len(run.videos) == 2


def test_games_of_atari_are_played_the_same_way(pixels, tmp_path):
    pytest.importorskip("ale_py")
    name = "ale_py:ALE/Breakout-v5"
    batch = Collector(pixels.make_env(name, 2), frames_per_batch=8).next().reshape(-1)
    assert batch["observation"].shape == (8, 1, 84, 84)
    assert batch["next", "stacked_observation"].dtype == torch.uint8
    assert batch["lives"].unique().tolist() == [5]
    buffer = pixels.make_buffer(pixels.Settings(name, capacity=100), tmp_path)
    batch["next", "lives"][3] = 4
    buffer.extend(batch)
    assert buffer[:]["next", "done"].flatten().tolist() == [row == 3 for row in range(8)]

"""The examples of SAC, PQN, offline learning and search in a model: short and resumed runs."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from rl_record import read_run
from test_examples import ROOT, load


def played(name, *options):
    script = ROOT / "examples" / f"{name}.py"
    command = [sys.executable, str(script), *map(str, options)]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_sac_goes_on_from_its_checkpoint(tmp_path):
    given = ["--out", tmp_path, "--no-video", "--seeds", 3]
    first = played("sac_pendulum", "--steps", 1000, *given)
    assert re.search(r"^seed 3: return -\d+\.\d over 20 episodes after 1000 steps", first, re.M)
    again = played("sac_pendulum", "--steps", 2000, "--resume", *given)
    assert "after 2000 steps" in again
    curve = read_run(tmp_path / "seed-3")["eval/return"]
    assert curve.steps.tolist() == [1000, 2000]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_sac_plays_a_task_of_mujoco(tmp_path):
    pytest.importorskip("mujoco")
    given = ["--env", "InvertedPendulum-v5", "--out", tmp_path, "--no-video", "--steps", 1040]
    assert "over 20 episodes after 1040 steps" in played("sac_pendulum", *given)
    run = read_run(tmp_path / "seed-0")
    assert run.settings["cells"] == 256
    assert run["loss_qvalue"].steps.tolist() == [1020, 1040]


def test_pqn_learns_and_goes_on_from_its_checkpoint(tmp_path):
    given = ["--out", tmp_path, "--no-video", "--seeds", 3]
    first = played("pqn_vector", "--steps", 20_480, *given)
    assert "over 20 episodes after 20480 steps" in first
    again = played("pqn_vector", "--steps", 40_960, "--resume", *given)
    assert "over 20 episodes after 40960 steps" in again
    run = read_run(tmp_path / "seed-3")
    assert run["eval/return"].steps.tolist() == [20_480, 40_960]
    assert run["epsilon"].values[-1] < run["epsilon"].values[0]
    assert run["eval/return"].values[-1] > 100  # about 9 before
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_targets_of_pqn_are_returns_of_its_own_values():
    pqn = load("pqn_vector")
    torch.manual_seed(0)
    settings = pqn.Settings(num_envs=3, num_steps=40)
    with tempfile.TemporaryDirectory() as folder:
        run = pqn.Run(settings, Path(folder) / "seed-0")
        batch = run.collector.next()
        reward = batch["next", "reward"].clone() * settings.reward_scale
        with torch.no_grad():
            ahead = run.network(batch["next"].clone())["action_value"].amax(-1, keepdim=True)
        wanted = torch.zeros_like(reward)
        ended, done = batch["next", "terminated"], batch["next", "done"].clone()
        done[:, -1] = True  # the batch is cut there
        assert ended.any()
        for step in reversed(range(settings.num_steps)):
            best = ahead[:, step]
            if step + 1 < settings.num_steps:
                mixed = settings.lmbda * wanted[:, step + 1] + (1 - settings.lmbda) * best
                best = torch.where(done[:, step], best, mixed)
            wanted[:, step] = reward[:, step] + settings.gamma * ~ended[:, step] * best
        before = [one.clone() for one in run.network.parameters()]
        run.learn(batch)
        torch.testing.assert_close(batch["action_value_target"], wanted)
        moved = zip(before, run.network.parameters(), strict=True)
        assert not any(torch.equal(one, other) for one, other in moved)
        run.logger.close()
    del sys.modules["pqn_vector"]


def test_a2c_goes_on_from_its_last_evaluation(tmp_path):
    given = ["--envs", 4, "--out", tmp_path / "run"]
    played("a2c_pendulum", "--steps", 256, *given)
    again = played("a2c_pendulum", "--steps", 512, "--resume", *given)
    assert again.startswith("resumed: ")
    assert read_run(tmp_path / "run")["eval/return"].steps.tolist() == [256, 384, 512]


def test_iql_is_compared_with_its_data_and_goes_on(tmp_path):
    given = ["--out", tmp_path, "--seeds", 3]
    first = played("offline_iql", "--updates", 500, *given)
    found = re.search(r"^seed 3: return (-\d+\.\d) over 20 .*, the data's (-\d+\.\d),", first, re.M)
    assert found
    again = played("offline_iql", "--updates", 1000, "--resume", *given)
    assert f"the data's {found[2]}," in again
    run = read_run(tmp_path / "seed-3")
    assert run["loss_value"].steps.tolist() == run["eval/return"].steps.tolist() == [500, 1000]


MINARI_LOSSES = {"iql": "actor", "bc": "bc"}  # an entry of what each logs


@pytest.mark.parametrize("loss", MINARI_LOSSES)
def test_a_dataset_is_recorded_written_read_and_learnt_from(loss, tmp_path):
    pytest.importorskip("h5py", reason="Minari's files are HDF5")
    given = ["--loss", loss, "--episodes", 20, "--out", tmp_path]
    told = played("offline_from_minari", "--updates", 150, *given)
    assert "written: main_data.hdf5 metadata.json" in told
    assert "20 terminated, 0 truncated, 0 cut" in told
    data, learnt = re.search(r"return of the data ([\d.]+), learnt ([\d.]+)", told).groups()
    assert float(learnt) > float(data)
    (tmp_path / f"{loss}.png").unlink()
    again = played("offline_from_minari", "--updates", 200, "--resume", *given)
    assert "written" not in again
    assert f"return of the data {data}," in again
    run = read_run(tmp_path / loss)
    logged = [run[name].steps.tolist() for name in ("eval/return", f"loss_{MINARI_LOSSES[loss]}")]
    assert logged == [[150, 200]] * 2
    assert (tmp_path / f"{loss}.png").read_bytes().startswith(b"\x89PNG")


def test_search_in_a_learned_model_learns_and_goes_on_from_its_checkpoint(tmp_path):
    given = ["--out", tmp_path, "--seeds", 1]
    first = played("mcts_learned_model", "--steps", 1000, *given)
    assert "over 20 episodes after 1000 steps" in first
    again = played("mcts_learned_model", "--steps", 2000, "--resume", *given)
    assert "over 20 episodes after 2000 steps" in again
    curve = read_run(tmp_path / "seed-1")["eval/return"]
    assert curve.steps.tolist() == [1000, 2000]
    assert curve.values[-1] > 40  # about 22 of random actions


def test_search_avoids_the_action_that_its_model_says_falls():
    example = load("mcts_learned_model")

    class FallsAtOnce(example.Model):
        def step(self, state, action):
            return state, torch.where(action == 1, 1.0, -1.0)

    settings = example.Settings()
    search = example.Search(FallsAtOnce(settings), settings)
    action, policy, values = search(torch.zeros(5, 4))
    assert action.tolist() == [[1, 0]] * 5
    assert (policy[:, 0] > policy[:, 1]).all()
    assert values.shape == (5, 1)

"""The smaller examples: shortened runs, and the numbers that their pages repeat."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rl_layout import check_layout

ROOT = Path(__file__).parent.parent


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def inspecting():
    yield load("inspect_layout")
    del sys.modules["inspect_layout"]


@pytest.fixture(scope="module")
def recipes():
    yield load("memory_recipes")
    del sys.modules["memory_recipes"]


@pytest.fixture(scope="module")
def pendulum():
    yield load("a2c_pendulum")
    del sys.modules["a2c_pendulum"]


def run(module, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
    module.main()


def page(name):
    return (ROOT / "docs" / "examples" / f"{name}.md").read_text(encoding="utf-8")


def printed_on(name):
    """The block of a page that repeats what its example prints."""
    return re.search(r"^```text\n(.*?)^```", page(name), flags=re.S | re.M)[1]


def refuses_a_folder(module, monkeypatch, tmp_path):
    """Check that an example says in one line that it cannot write to a folder."""
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SystemExit, match=r"^[a-z0-9_]+: cannot write to .*file") as refused:
        run(module, monkeypatch, "--out", file / "folder")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["inspecting", "recipes", "pendulum"])
def test_a_folder_that_cannot_be_written_to_is_one_line(name, request, monkeypatch, tmp_path):
    refuses_a_folder(request.getfixturevalue(name), monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("inspecting", ["--envs", 0], "--envs and --steps must be at least 1"),
        ("inspecting", ["--seed", -1], "--seed at least 0"),
        ("recipes", ["--frames", 0], "--steps, --frames and --rounds must be at least 1"),
        ("pendulum", ["--steps", -5], "--envs and --steps must be at least 1"),
    ],
)
def test_numbers_that_make_no_run_are_one_line(name, options, words, request, monkeypatch, capsys):
    with pytest.raises(SystemExit) as refused:
        run(request.getfixturevalue(name), monkeypatch, *options)
    assert refused.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


def test_ctrl_c_ends_a_pendulum_with_one_line(tmp_path):
    process = subprocess.Popen(
        command("a2c_pendulum", "--envs", 2, "--out", tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout.readline().startswith("untrained: ")
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert told == "a2c_pendulum: interrupted, --resume starts at the last evaluation\n"


def test_a_batch_is_inspected_as_its_page_says(inspecting, monkeypatch, capsys, tmp_path):
    run(inspecting, monkeypatch, "--out", tmp_path)
    printed = capsys.readouterr().out.replace(str(tmp_path), "runs/inspect_layout")
    assert printed == printed_on("inspect-layout")
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == [*(f"fault_{n}.png" for n in (1, 2, 3, 4)), "right.png"]


def test_faults_are_made_on_copies(inspecting):
    batch = inspecting.collect(num_envs=2, num_steps=50, seed=3)
    before = batch.clone()
    for fault in inspecting.FAULTS:
        fault.make(batch)
    assert (batch == before).all()
    assert not check_layout(batch).findings


def test_a_fault_that_goes_unnoticed_ends_the_example(inspecting, monkeypatch, tmp_path):
    harmless = inspecting.Fault("nothing", "none", lambda batch: batch)
    monkeypatch.setattr(inspecting, "FAULTS", [harmless])
    with pytest.raises(RuntimeError, match="nothing went unnoticed"):
        run(inspecting, monkeypatch, "--out", tmp_path)


@pytest.fixture(scope="module")
def on_cartpole(recipes):
    found = recipes.compare(lambda: recipes.GymEnv("CartPole-v1"), steps=4000, rounds=1)
    return {one.name: one for one in found}


def test_lossless_is_exact(on_cartpole):
    for name in ("stored twice", "lossless"):
        assert on_cartpole[name].equal == 1
        assert on_cartpole[name].missing == 0


def test_compact_batches_mark_lost_observations_and_keep_the_rest_exact(on_cartpole):
    transformed, linked = on_cartpole["compact_obs"], on_cartpole["compact, linked"]
    assert 0 < transformed.missing < 0.1
    assert transformed.equal == pytest.approx(1 - transformed.missing)
    assert (linked.equal, linked.missing) == (transformed.equal, transformed.missing)
    assert transformed.bytes_per_step < linked.bytes_per_step < 76


def test_differences_are_close_everywhere(on_cartpole):
    assert on_cartpole["delta"].missing == 0
    assert 0 < on_cartpole["delta"].error < 1e-3


def test_frames_are_stored_once_at_half_the_bytes(recipes):
    found = {one.name: one for one in recipes.compare(recipes.Frames, steps=800, rounds=1)}
    assert "delta" not in found
    assert found["lossless"].equal == 1
    assert found["compact, linked"].bytes_per_step < 0.51 * found["stored twice"].bytes_per_step


def test_recipes_are_laid_out_and_drawn(recipes, monkeypatch, capsys, tmp_path):
    run(recipes, monkeypatch, "--steps", 800, "--frames", 400, "--rounds", 1, "--out", tmp_path)
    printed = capsys.readouterr().out
    assert printed.count("stored twice") == printed.count("lossless") == 2
    assert (tmp_path / "bytes.png").read_bytes().startswith(b"\x89PNG")


def test_recipes_that_saw_other_steps_are_refused(recipes):
    def stored(seed):
        torch.manual_seed(seed)
        batches = [recipes.Collector(recipes.GymEnv("CartPole-v1"), frames_per_batch=400).next()]
        one = recipes.Stored(recipes.RECIPES[0], batches)
        one.write(0)
        one.sample()
        return one

    with pytest.raises(RuntimeError, match="other steps"):
        recipes.result_of(stored(1), stored(2).buffer[:])


def small(pendulum, **settings):
    return pendulum.Run(pendulum.Settings(**({"num_envs": 3, "num_steps": 30} | settings)))


@pytest.mark.parametrize("truncations_terminate", [False, True])
def test_a_pendulum_is_bootstrapped_where_its_time_is_up(pendulum, truncations_terminate):
    run = small(pendulum, truncations_terminate=truncations_terminate)
    batch = run.collect()
    over = batch["next", "truncated"]
    assert over.sum(1).flatten().tolist() == [1, 1, 1]
    assert torch.equal(batch["next", "terminated"], over & truncations_terminate)
    run.advantage(batch)
    reward = batch["next", "reward"][over]
    with torch.no_grad():
        ahead = run.loss.critic_network(batch["next"][over.squeeze(-1)].clone())["state_value"]
    expected = reward if truncations_terminate else reward + 0.9 * ahead.squeeze(-1)
    assert torch.allclose(batch["value_target"][over], expected, atol=1e-6)


def test_the_same_seed_trains_the_same_pendulum(pendulum):
    def trained(seed):
        run = small(pendulum, num_steps=8, seed=seed)
        for _ in range(3):
            run.update(run.collect())
        return torch.cat([p.detach().flatten() for p in run.loss.parameters()])

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))


def test_a_pendulum_is_trained_and_drawn(pendulum, monkeypatch, capsys, tmp_path):
    run(pendulum, monkeypatch, "--envs", 4, "--steps", 256, "--out", tmp_path)
    printed = capsys.readouterr().out
    assert re.search(
        r"^trained: mean return -\d+\.\d of 50 new episodes, \d+ steps$", printed, re.M
    )
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def command(name, *arguments):
    return [sys.executable, str(ROOT / "examples" / f"{name}.py"), *map(str, arguments)]

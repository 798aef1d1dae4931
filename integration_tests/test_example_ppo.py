"""The recurrent PPO example: its numbers by hand, learning, resuming, and what it refuses."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

from rl_layout import check_layout, set_recurrent_mode
from rl_record import read_run

SCRIPT = Path(__file__).parent.parent / "examples" / "ppo_recurrent_cartpole.py"
STEPS = 16 * 1024  # two evaluations


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("ppo_recurrent_cartpole", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(autouse=True)
def _as_it_was():
    """What the example's `main` sets in its process: one thread, and who hears of Ctrl-C."""
    threads, heard = torch.get_num_threads(), signal.getsignal(signal.SIGINT)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, heard)


def read(out):
    return torch.load(out / "checkpoint.pt", weights_only=True)


def command(*arguments):
    return [sys.executable, str(SCRIPT), *map(str, arguments)]


def differences(one, other, path=()):
    """Paths of leaves that are not equal bit for bit."""
    if isinstance(one, torch.Tensor):
        same = one.dtype == other.dtype and torch.equal(one, other)
        return [] if same else [path]
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        return [p for key in one for p in differences(one[key], other[key], (*path, key))]
    if isinstance(one, list | tuple):
        assert len(one) == len(other), path
        pairs = enumerate(zip(one, other, strict=True))
        return [p for number, (a, b) in pairs for p in differences(a, b, (*path, number))]
    return [] if one == other else [path]


def same(one, other):
    """Whether two curves have the same steps and numbers, whenever they were logged."""
    both = zip(one[:2], other[:2], strict=True)
    return all(numpy.array_equal(a, b, equal_nan=True) for a, b in both)


def values_by_hand(run, batch):
    """Step the critic through a batch `[B, T]`, from the state that its first column stores."""
    critic, found = run.acting[1], []
    state = batch["critic_state"][:, 0]
    for t in range(batch.shape[1]):
        state = torch.where(batch["is_init"][:, t, :, None], torch.zeros_like(state), state)
        assert torch.allclose(state, batch["critic_state"][:, t], atol=1e-6)
        root = batch[:, t].select("observation", "is_init").set("critic_state", state)
        now = critic(root.copy())
        after = root.copy().set("observation", batch["next", "observation"][:, t])
        after["critic_state"] = state = now["next", "critic_state"]
        found.append((now["state_value"], critic(after)["state_value"]))
    values, following = zip(*found, strict=True)
    return torch.stack(values, 1)[..., 0], torch.stack(following, 1)[..., 0]


@torch.no_grad()
def test_advantages_are_those_of_a_loop_over_steps(example):
    run = example.Run(example.Settings(num_envs=3, num_steps=40))
    run.collector.next()  # so that the batch begins in mid-trajectory
    batch = run.collector.next()
    assert check_layout(batch).ok
    assert not batch["is_init"][:, 0].all()
    assert batch["is_init"][:, 1:].any()
    batch["next", "reward"] *= 0.02
    value, following = values_by_hand(run, batch)
    terminated, done = batch["next", "terminated"][..., 0], batch["next", "done"][..., 0]
    delta = batch["next", "reward"][..., 0] + 0.98 * following * ~terminated - value
    carried, advantage = torch.zeros(3), torch.zeros(3, 40)
    for t in reversed(range(40)):
        carried = advantage[:, t] = delta[:, t] + 0.98 * 0.9 * carried * ~done[:, t]
    run.advantage(batch)
    torch.testing.assert_close(batch["advantage"][..., 0], advantage, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(batch["value_target"][..., 0], advantage + value)


@torch.no_grad()
def test_slices_start_from_their_stored_states(example):
    run = example.Run(example.Settings(num_envs=3, num_steps=48))
    run.collector.next()
    batch = run.collector.next()
    run.advantage(batch)
    slices = batch.reshape(-1, 16)
    assert check_layout(slices).ok
    assert not slices["is_init"][:, 0].all()
    with set_recurrent_mode(True):
        now = run.agent[0].get_dist(slices.copy()).log_prob(slices["action"])
    torch.testing.assert_close(now, slices["sample_log_prob"])
    assert run.loss(slices[torch.tensor([4, 0, 7])])["kl_approx"].abs() < 1e-6


def test_velocities_are_hidden(example):
    shown = example.make_env("CartPole-v1", 3).rollout(5)
    raw = shown["observation"]
    assert raw.shape == (3, 5, 2)
    env = example.make_env("CartPole-v1", 3)
    env.set_seed(7)
    whole = env.base_env.reset()["observation"]
    env.set_seed(7)
    assert torch.equal(env.reset()["observation"] * torch.tensor([2.4, 0.21]), whole[:, [0, 2]])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run: its folder, and its output."""
    out = tmp_path_factory.mktemp("whole")
    told = subprocess.run(command("--steps", STEPS, "--out", out), capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    return out, told.stdout


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A run that gets Ctrl-C in its second batch: its folder, group, status and last words."""
    out = tmp_path_factory.mktemp("interrupted")
    process = subprocess.Popen(
        command("--out", out), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    told = ""
    while "1.02k" not in told:  # the bar, after the first batch
        told += process.stderr.read(1)
        assert process.poll() is None, told
    os.killpg(process.pid, signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    return out, process.pid, process.returncode, rest


def test_example_learns_and_prints_the_path_of_the_curve(whole):
    out, told = whole
    verdict, steps, curve, checkpoint = told.splitlines()
    score = re.fullmatch(
        r"(?:not )?solved: mean return (\S+) of 20 new episodes, 475.0 wanted", verdict
    )
    assert float(score[1]) > 100  # 9 before the first update, 200 to 500 here, as the seed has it
    assert steps.startswith("16,384 steps, ")
    assert curve == f"curve: {out / 'curve.png'}"
    assert checkpoint == f"checkpoint: {out / 'checkpoint.pt'}"
    assert (out / "curve.png").read_bytes()[:4] == b"\x89PNG"


def test_ctrl_c_leaves_a_checkpoint_and_no_process(interrupted):
    out, group, status, rest = interrupted
    assert status == 1
    assert "Traceback" not in rest
    frames = read(out)["collector"]["batches"]["frames"]
    assert 0 < frames < STEPS
    assert rest.splitlines()[-1] == (
        f"ppo_recurrent_cartpole: interrupted at step {frames:,}, "
        f"--resume starts at {out / 'checkpoint.pt'}"
    )
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)  # the group has no process left
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint.pt", "metrics.jsonl"]


def test_a_resumed_run_ends_bitwise_where_a_whole_one_ends(whole, interrupted, tmp_path):
    shutil.copytree(interrupted[0], tmp_path, dirs_exist_ok=True)
    options = ("--resume", "--steps", STEPS, "--out", tmp_path)
    subprocess.run(command(*options), check=True, capture_output=True)
    one, other = read(whole[0]), read(tmp_path)
    assert one["collector"]["batches"]["frames"] == STEPS
    assert differences(one, other) == []
    logged, again = (read_run(folder) for folder in (whole[0], tmp_path))
    assert logged["eval/return"].steps.tolist() == [8192, STEPS]
    assert logged.keys() == again.keys()
    assert all(same(logged[name], again[name]) for name in logged)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--env", "Nothing-v3"], "no environment 'Nothing-v3' here: "),
        (["--env", "Pendulum-v1"], "Pendulum-v1 is no CartPole: "),
        (["--device", "cuda:77"], "no device 'cuda:77' here: "),
        (["--device", "toaster"], "no device 'toaster' here: "),
        (["--device", "meta"], "no device 'meta' here: "),
        (["--seed", "-1"], "expected a seed of at most 31 bits, got -1"),
        (["--resume"], "there is no checkpoint "),
    ],
)
def test_bad_input_ends_with_one_line(example, tmp_path, monkeypatch, options, reason):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *options, "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        example.main()
    line = str(ended.value)
    assert line.startswith(f"ppo_recurrent_cartpole: {reason}")
    assert "\n" not in line


def test_a_checkpoint_of_another_run_is_refused(example, tmp_path):
    path = tmp_path / "checkpoint.pt"
    small = {"num_envs": 2, "num_steps": 16, "hidden_size": 8}
    example.Run(example.Settings(seed=1, **small)).save(path, {"last_step": 3})
    assert example.Run(example.Settings(seed=1, **small)).load(path) == {"last_step": 3}
    with pytest.raises(SystemExit, match="of another run: seed was 1, now is 2"):
        example.Run(example.Settings(seed=2, **small)).load(path)


class Harmful:
    """Runs a command where it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch harmed",)


@pytest.mark.parametrize("what", [b"", b"hello", {"weights": 3}, [1], Harmful()])
def test_a_file_that_is_no_checkpoint_is_refused_and_not_run(example, tmp_path, monkeypatch, what):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(what) if isinstance(what, bytes) else torch.save(what, path)
    run = example.Run(example.Settings(num_envs=2, num_steps=16, hidden_size=8))
    with pytest.raises(SystemExit, match="is no checkpoint of this example: "):
        run.load(path)
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


def test_a_run_is_not_begun_in_the_folder_of_another(example, whole, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--out", str(whole[0])])
    with pytest.raises(SystemExit, match=r"holds a run: --resume continues it, another --out"):
        example.main()


def test_refusals_reach_the_shell(tmp_path):
    told = subprocess.run(
        command("--env", "Nothing-v3", "--out", tmp_path), capture_output=True, text=True
    )
    assert told.returncode == 1
    assert told.stdout == ""
    assert len(told.stderr.splitlines()) == 1


@pytest.mark.gpu
def test_example_trains_and_resumes_on_cuda(tmp_path):
    for options in (["--steps", 2048], ["--steps", 4096, "--resume"]):
        device = ("--device", "cuda", "--out", tmp_path)
        subprocess.run(command(*options, *device), check=True, capture_output=True)
    state = torch.load(tmp_path / "checkpoint.pt", map_location="cpu", weights_only=True)
    assert state["collector"]["batches"]["frames"] == 4096
    for name, value in state["collector"]["policy"].items():
        assert torch.equal(value, state["agent"][name])  # what acts is what has learnt

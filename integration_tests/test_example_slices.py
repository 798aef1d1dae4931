"""The example of slices: its states, a shortened run, and what it says of bad input."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from rl_collect import Collector
from rl_layout import check_layout, keys
from rl_record import read_run
from test_examples import command, load, refuses_a_folder, run


@pytest.fixture(scope="module")
def slices():
    yield load("dqn_recurrent_slices")
    del sys.modules["dqn_recurrent_slices"]


def test_a_folder_that_cannot_be_written_to_is_one_line(slices, monkeypatch, tmp_path):
    refuses_a_folder(slices, monkeypatch, tmp_path)


def filled(slices):
    """A small run whose buffer was filled by this process."""
    small = {"capacity": 900, "slices": 13, "slice_steps": 9, "burn_in": 3, "hidden_size": 7}
    run = slices.Run(slices.Settings(seed=4, **small))
    env = slices.make_env("CartPole-v1", 2)
    options = {"frames_per_batch": 400, "trajs_per_batch": 1, "replay_buffer": run.buffer}
    collector = Collector(env, run.acting, **options)
    collector.set_seed(4)
    collector.next()
    return run


def drawn(run):
    torch.manual_seed(5)
    return run.buffer.sample()


@torch.no_grad()
def stale(run, batch):
    """Later rows of a slice whose stored state differs from what the network computes."""
    state, ids, found = batch["recurrent_state"], batch["collector", "slice_ids"], 0
    for row in range(1, len(batch)):
        if ids[row] == ids[row - 1]:
            before = (batch["observation"][row - 1], state[row - 1], batch["is_init"][row - 1])
            found += not torch.allclose(run.gru.step(*before)[1], state[row], atol=1e-5)
    return found


def test_an_update_trains_and_refreshes_the_states_of_its_slices(slices):
    run = filled(slices)
    with torch.no_grad():
        run.gru.network.weight_hh_l0.mul_(3)  # what acted is an older network now
    before = drawn(run)
    assert check_layout(before).ok
    in_the_middle = before["collector", "traj_step"][before["is_init"][:, 0]] > 0
    assert in_the_middle.any()
    assert stale(run, before) > 50
    head = run.network[0][1].weight.clone()
    torch.manual_seed(5)
    run.update()
    assert not torch.equal(head, run.network[0][1].weight)
    after = drawn(run)
    assert torch.equal(after[keys.ROW], before[keys.ROW])
    assert stale(run, after) < 0.2 * stale(run, before)  # slices overlap; the later one counts


def test_rows_that_warm_a_state_up_are_not_learned_from(slices):
    run = filled(slices)
    weights = []
    for spoiled in (False, True):
        one = filled(slices)
        if spoiled:  # no target of a later row holds these rewards
            batch = drawn(one)
            warm = one.gru.burn_in_mask(batch)
            rows = batch[warm]
            assert len(rows) > 5
            trained = set(batch[keys.ROW][~warm].tolist())
            alone = torch.tensor([row not in trained for row in rows[keys.ROW].tolist()])
            assert alone.any()
            rows = rows[alone]
            rows["next", "reward"] += 1000.0
            one.buffer.update_rows(rows[keys.ROW], rows.select(("next", "reward")))
        torch.manual_seed(5)
        one.update()
        weights.append(one.network[0][1].weight)
    assert torch.equal(*weights)
    assert not torch.equal(weights[0], run.network[0][1].weight)


def test_slices_are_learned_from_while_workers_play_on(tmp_path):
    options = ("--steps", 2048, "--out", tmp_path)
    told = subprocess.run(command("dqn_recurrent_slices", *options), capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    verdict, steps, curve, checkpoint = told.stdout.splitlines()
    pattern = r"not solved: mean return \d+\.\d of 20 new episodes, 475.0 wanted"
    assert re.fullmatch(pattern, verdict)
    assert steps.startswith("2,048 steps, ")
    assert Path(curve.removeprefix("curve: ")).read_bytes().startswith(b"\x89PNG")
    state = torch.load(checkpoint.removeprefix("checkpoint: "), weights_only=True)
    assert state["steps"] == state["log"]["last_step"] == 2048
    logged = read_run(tmp_path)
    assert logged["eval/return"].steps.tolist() == [2048]
    assert logged["loss"].steps.tolist() == [1664, 1792, 1920, 2048]


def test_ctrl_c_leaves_a_checkpoint_that_a_run_goes_on_from(slices, tmp_path):
    process = subprocess.Popen(
        command("dqn_recurrent_slices", "--out", tmp_path),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    told = ""
    while not re.search(r" [1-9]\d*/300000 ", told):  # the bar, after the first batch
        told += process.stderr.read(1)
        assert process.poll() is None, told
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    _, rest = process.communicate(timeout=120)
    assert process.returncode == 1
    steps = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["steps"]
    assert rest.splitlines()[-1] == (
        f"dqn_recurrent_slices: interrupted at step {steps:,}, "
        f"--resume starts at {tmp_path / 'checkpoint.pt'}"
    )
    _, left = psutil.wait_procs(family, timeout=10)
    assert len(family) >= 2 + slices.WORKERS  # what starts workers, and what tracks resources
    assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []
    options = ("--resume", "--steps", steps + 128, "--out", tmp_path)
    told = subprocess.run(command("dqn_recurrent_slices", *options), capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines()[1].startswith(f"{steps + 128:,} steps, ")
    assert read_run(tmp_path).settings["slices"] == 48
    with pytest.raises(SystemExit, match="holds a run: --resume continues it"):
        slices.check(slices.Settings(), tmp_path, resume=False)


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
def test_bad_input_ends_with_one_line(slices, monkeypatch, tmp_path, options, reason):
    heard = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as ended:
        run(slices, monkeypatch, *options, "--out", tmp_path)
    signal.signal(signal.SIGINT, heard)
    line = str(ended.value)
    assert line.startswith(f"dqn_recurrent_slices: {reason}")
    assert "\n" not in line


def test_a_run_is_saved_and_others_are_refused(slices, tmp_path):
    one = filled(slices)
    one.update()
    one.steps = 400
    one.save(tmp_path, {"last_step": 400})
    settings = vars(one.settings)
    again = slices.Run(slices.Settings(**settings))
    assert again.load(tmp_path) == {"last_step": 400}
    assert again.steps == 400
    assert torch.equal(again.network[0][1].weight, one.network[0][1].weight)
    assert (drawn(again)[keys.ROW] == drawn(one)[keys.ROW]).all()
    other = slices.Run(slices.Settings(**(settings | {"seed": 3})))
    with pytest.raises(SystemExit, match="is of another run: seed was 4, now is 3"):
        other.load(tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(b"no checkpoint")
    with pytest.raises(SystemExit, match="is no checkpoint of this example"):
        again.load(tmp_path)

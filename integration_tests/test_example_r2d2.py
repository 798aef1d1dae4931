"""The example of R2D2: its numbers by hand and by a loop, and a shortened run."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import sys

import pytest
import torch

from rl_layout import set_recurrent_mode
from rl_record import read_run
from test_example_actors import played
from test_examples import load


@pytest.fixture(scope="module")
def r2d2():
    yield load("r2d2_hidden_velocity")
    del sys.modules["r2d2_hidden_velocity"]


def test_returns_are_rescaled_and_scaled_back(r2d2):
    values = torch.linspace(-80, 80, 33)
    found = r2d2.rescaled(values)
    assert found[-1] == pytest.approx(8 + 0.08)
    torch.testing.assert_close(r2d2.unscaled(found), values, rtol=1e-3, atol=1e-3)


def test_a_fall_costs_one_and_all_other_steps_nothing(r2d2):
    rewards = r2d2.make_env(3).rollout(60, break_when_any_done=False)["next"]
    assert rewards["terminated"].any()
    assert (rewards["reward"] == -rewards["terminated"].float()).all()


def test_first_steps_of_slices_have_the_priorities(r2d2):
    run = r2d2.Run(r2d2.Settings(eta=0.75, slices=2))
    for _ in range(3):
        run.collector.next()
    batch = run.buffer.sample()
    batch["td_error"] = torch.zeros(len(batch))
    run.buffer.update_tensordict_priority(batch)
    first = batch["collector", "slice_ids"].diff(prepend=torch.tensor([-1])) > 0
    batch["td_error"][first.nonzero()[0] + 3] = 8.0
    run.buffer.update_tensordict_priority(batch)
    length = int((batch["collector", "slice_ids"] == 0).sum())
    highest = run.buffer.stats()["highest_priority"]
    assert highest == pytest.approx(0.75 * 8 + 0.25 * 8 / length)


@pytest.mark.parametrize("sampler", ["priorities", "uniform"])
def test_targets_are_those_of_a_loop(r2d2, sampler):
    run = r2d2.Run(r2d2.Settings(sampler, slices=6))
    for _ in range(3):
        run.collector.next()
    run.target.load_state_dict({k: v * 1.5 for k, v in run.target.state_dict().items()})
    batch = run.buffer.sample()
    errors, counted = (found.detach() for found in run.errors(batch))
    warm, slices = run.gru.burn_in_mask(batch), batch["collector", "slice_ids"].tolist()
    with set_recurrent_mode(True), torch.no_grad():
        fast, slow = (net(batch.copy())["action_value"] for net in (run.network, run.target))
    known = 0
    for row in range(len(batch)):
        total, there = 0.0, True
        for step in range(5):
            if batch["next", "terminated"][row + step]:
                total -= 0.98**step
                break
            there = row + step + 1 < len(batch) and slices[row + step + 1] == slices[row]
            if not there:
                break
        else:
            later = row + 5
            total += 0.98**5 * r2d2.unscaled(slow[later, fast[later].argmax()])
        assert bool(counted[row]) == (there and not warm[row])
        if there:
            value = (fast[row] * batch["action"][row]).sum()
            wanted = float(value - r2d2.rescaled(torch.as_tensor(total)))
            assert float(errors[row]) == pytest.approx(wanted, abs=1e-4)
            known += 1
    assert known > 20


def test_both_samplers_are_trained_with_compared_and_resumed(tmp_path):
    given = ["--samplers", "priorities", "uniform", "--out", tmp_path]
    lines = played("r2d2_hidden_velocity", "--steps", 2048, *given).splitlines()
    assert [line.split(",")[0] for line in lines[:2]] == ["priorities", "uniform"]
    played("r2d2_hidden_velocity", "--steps", 4096, "--resume", *given)
    for name in ("priorities", "uniform"):
        run = read_run(tmp_path / name / "seed-0")
        assert run.settings["sampler"] == name
        assert run["eval/length"].steps.tolist() == [2048, 4096]
        assert run["loss"].steps.tolist() == list(range(1152, 4097, 128))
    assert (tmp_path / "curves.png").stat().st_size > 1000

"""The example of a tiny language model: it learns, and a resumed run is the whole one."""

# ruff: noqa: D103 - the name of a test is its promise

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from rl_layout import check_layout
from rl_record import read_run

pytest.importorskip("transformers")
PATH = Path(__file__).parent.parent / "examples" / "grpo_tiny.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("grpo_tiny", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["grpo_tiny"] = module  # where dataclasses look
    spec.loader.exec_module(module)
    yield module
    del sys.modules["grpo_tiny"]


def test_scores_are_shares_of_the_wanted_word_and_end(example, tmp_path):
    run = example.Run(example.Settings(), tmp_path / "seed-0")
    wanted = run.wanted[0]
    assert run.score(0, wanted) == 1
    assert run.score(0, wanted[:2]) == 0.5
    assert run.score(0, [*wanted[:3], wanted[0], wanted[0], wanted[0]]) == 0.5
    assert check_layout(run.write()).ok
    run.logger.close()


def test_resumed_run_is_the_whole_one_and_the_reward_rises(example, tmp_path):
    settings = example.Settings(steps_per_checkpoint=10, num_samples=8)
    whole = example.Run(settings, tmp_path / "whole")
    whole.train(20)
    cut = example.Run(settings, tmp_path / "cut")
    cut.train(13)  # three steps after its checkpoint
    cut.logger.close()
    again = example.Run(settings, tmp_path / "cut", resume=True)
    assert again.steps == 10
    again.train(20)
    for run in (whole, again):
        run.logger.close()  # a thread writes the log
    for ours, theirs in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert ours.equal(theirs)
    rewards = read_run(tmp_path / "cut")["reward"].values
    assert list(rewards) == list(read_run(tmp_path / "whole")["reward"].values)
    assert rewards[-1] > rewards[0] + 0.1

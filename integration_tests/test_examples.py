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

import psutil
import pytest
import torch

from rl_collect import Collector
from rl_layout import check_layout, keys
from rl_record import read_run

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


@pytest.fixture(scope="module")
def slices():
    yield load("dqn_recurrent_slices")
    del sys.modules["dqn_recurrent_slices"]


@pytest.fixture(autouse=True)
def _as_many_threads_as_before():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def run(module, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
    module.main()


def page(name):
    return (ROOT / "docs" / "examples" / f"{name}.md").read_text(encoding="utf-8")


def printed_on(name):
    """The block of a page that repeats what its example prints."""
    return re.search(r"^```text\n(.*?)^```", page(name), flags=re.S | re.M)[1]


@pytest.mark.parametrize("name", ["inspecting", "recipes", "pendulum", "slices"])
def test_a_folder_that_cannot_be_written_to_is_one_line(name, request, monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SystemExit, match=r"^[a-z0-9_]+: cannot write to .*file") as refused:
        run(request.getfixturevalue(name), monkeypatch, "--out", file / "folder")
    assert "\n" not in str(refused.value)


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
    with pytest.raises(SystemExit, match="holds a run: --resume goes on with it"):
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

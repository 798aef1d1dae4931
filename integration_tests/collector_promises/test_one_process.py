"""What the five founding documents promise of collectors, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl_collect import (
    Collector,
    SyncDataCollector,
)
from rl_envs import GymEnv, SerialEnv, TransformedEnv
from rl_envs.testing import CountingEnv, EpisodeStepEnv, NestedEnv
from rl_layout import check_layout
from rl_layout.keys import next_key
from rl_policies import MLP, OneHotCategorical, ProbabilisticActor
from rl_replay import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer, SliceSampler
from rl_transforms import InitTracker, MultiStep, TensorDictPrimer

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

IDS = ("collector", "traj_ids")


class Written(list):
    """A buffer that notes how it was written."""

    def extend(self, rows: TensorDictBase) -> None:  # type: ignore[override]
        """Keep a batch."""
        self.append(rows)

    def add(self, row: TensorDictBase) -> None:
        """Keep a step."""
        self.append(row)


class Rounded(nn.Module):
    """The larger of two numbers, as a one-hot row."""

    def forward(self, values: Tensor) -> Tensor:
        """Mark it."""
        return values == values.max(-1, keepdim=True).values


def test_a_batch_stacks_the_steps_of_one_rollout(short) -> None:
    """`frames_per_batch` steps are stacked into the batch, the last dimension is `"time"`."""
    single, several = Collector(short, frames_per_batch=4), SerialEnv(3, short)
    assert single.rollout().shape == (4,)
    batch = Collector(several, frames_per_batch=12).rollout()
    assert batch.shape == (3, 4)
    assert batch.names == [None, "time"]


def test_a_batch_ends_and_the_trajectory_goes_on(cart, of_batches, recurrent) -> None:
    """The next rollout resumes from the right observation, recurrent state and id."""
    collector = Collector(cart, recurrent(), frames_per_batch=5, total_frames=10)
    collector.set_seed(0)
    first, second = of_batches(collector)
    assert not first["next", "done"].any()
    assert torch.equal(second["observation"][0], first["next", "observation"][-1])
    assert torch.equal(second["rs"][0], first["next", "rs"][-1])
    assert second["rs"][0].any()
    assert second[IDS][0] == first[IDS][-1]
    assert not second["is_init"][0]


def test_a_second_iterator_takes_up_what_the_first_left() -> None:
    """State persists across calls of `next(iter(collector))`."""
    collector = Collector(lambda: CountingEnv(max_steps=9), frames_per_batch=4, total_frames=8)
    counts = [next(iter(collector))["observation"].flatten().tolist() for _ in range(2)]
    assert counts == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_recurrent_state_is_carried_forward_and_returns_to_its_default(cart, recurrent) -> None:
    """Zeros where `is_init` is set, what the step before wrote everywhere else."""
    env = TransformedEnv(cart())
    policy = recurrent()
    batch = Collector(env, policy, frames_per_batch=60, auto_register_policy_transforms=True).next()
    starts = batch["is_init"].flatten()
    assert starts.sum() > 2
    assert not batch["rs"][starts].any()
    goes_on = ~starts[1:]
    assert torch.equal(batch["rs"][1:][goes_on], batch["next", "rs"][:-1][goes_on])


def test_wiring_by_the_environment_and_by_the_collector_is_done_once(cart, recurrent) -> None:
    """Combining both entry points is a no-op."""
    policy = recurrent()
    bare, wired = cart(), GymEnv("CartPole-v1", policy=policy)
    for env in (bare, wired):
        options = {"frames_per_batch": 4, "auto_register_policy_transforms": True}
        found = Collector(env, policy, **options).env.transforms
        assert [type(one) for one in found] == [InitTracker, TensorDictPrimer]


def test_a_policy_without_its_wiring_is_refused_by_name(cart, recurrent) -> None:
    """Without `InitTracker` and primer the keys of the policy are missing."""
    with pytest.raises(KeyError, match="is_init"):
        Collector(cart, recurrent(), frames_per_batch=4, auto_register_policy_transforms=False)


def test_steps_are_added_one_by_one_where_direct_writes_are_asked_for(of_batches, short) -> None:
    """`replay_buffer.add(...)` for every step, otherwise `extend` for every batch."""
    by_step, by_batch = Written(), Written()
    options = {"frames_per_batch": 4, "total_frames": 8}
    assert of_batches(Collector(short, replay_buffer=by_step, extend_buffer=False, **options)) == [
        None,
        None,
    ]
    of_batches(Collector(short, replay_buffer=by_batch, **options))
    assert [rows.shape for rows in by_step] == [()] * 8
    assert [rows.shape for rows in by_batch] == [(4,), (4,)]
    rows = torch.stack(list(by_step))
    assert torch.equal(rows["observation"], torch.cat(list(by_batch))["observation"])


def test_every_frame_has_an_id_that_changes_where_its_environment_ends() -> None:
    """Fresh ids for the environments that finished, and for no other."""
    env = EpisodeStepEnv([(2, "terminated"), (4, "truncated")], batch_size=(2,))
    batch = Collector(env, frames_per_batch=8).next()
    assert batch[IDS].dtype == torch.int64
    changes = (batch[IDS][:, 1:] != batch[IDS][:, :-1]).tolist()
    assert changes == [[False, True, False], [False, False, False]]
    assert len(batch[IDS].unique()) == 3


def test_ids_can_be_left_out_and_padding_needs_them(short) -> None:
    """`track_traj_ids=False` writes none; `split_trajs=True` with it is refused."""
    assert IDS not in Collector(short, frames_per_batch=4, track_traj_ids=False).next().keys(True)
    with pytest.raises(ValueError, match="track_traj_ids"):
        Collector(short, frames_per_batch=4, track_traj_ids=False, split_trajs=True)


def test_padded_trajectories_are_advised_against(short) -> None:
    """`split_trajs=True` returns `[N_traj, T_max]` with a mask, and warns."""
    with pytest.warns(UserWarning, match="split_trajs pads"):
        collector = Collector(short, frames_per_batch=5, split_trajs=True)
    batch = collector.next()
    assert batch.shape == (2, 3)
    assert batch["collector", "mask"].tolist() == [[True] * 3, [True, True, False]]
    assert not batch["observation"][1, 2].any()


def test_hooks_are_called_around_a_batch(of_batches) -> None:
    """The first before any reset and step, without arguments; the second with what is yielded."""
    seen: list[Any] = []
    env = CountingEnv(max_steps=9)
    collector = Collector(
        env,
        frames_per_batch=2,
        total_frames=4,
        reset_at_each_iter=True,
        pre_collect_hook=lambda: seen.append(env.moves),
        post_collect_hook=lambda batch: seen.append(batch) or "ignored",
        postproc=lambda batch: batch.set("marked", torch.ones(2)),
    )
    batches = of_batches(collector)
    assert seen[1] is batches[0]
    assert seen[3] is batches[1]
    assert "marked" in batches[0]
    assert seen[0] < seen[2]
    assert batches[1]["observation"].flatten().tolist() == [0, 1]


@pytest.mark.parametrize("hook", ["pre_collect_hook", "post_collect_hook"])
def test_an_error_of_a_hook_stops_collection(hook: str, short) -> None:
    """It propagates; it is not swallowed."""

    def fail(*batch: TensorDictBase) -> None:
        msg = "a hook failed"
        raise RuntimeError(msg)

    collector = Collector(short, frames_per_batch=2, **{hook: fail})
    with collector, pytest.raises(RuntimeError, match="a hook failed"):
        next(iter(collector))


def test_each_stage_can_be_placed_on_a_device(cart) -> None:
    """`env_device`, `policy_device`, `storing_device`, `no_cuda_sync`, or `device` for all."""
    placed = {f"{stage}_device": "cpu" for stage in ("env", "policy", "storing")}
    for options in (placed, {"device": "cpu"}):
        policy = nn.Sequential(nn.Linear(4, 2), nn.Softmax(-1), Rounded())
        collector = Collector(cart, policy, frames_per_batch=4, no_cuda_sync=True, **options)
        batch = collector.next()
        assert {leaf.device for leaf in batch.values(True, True)} == {torch.device("cpu")}


def test_nested_observations_are_compacted_too() -> None:
    """What the environment repeats is found by its specs, nested keys included."""
    whole = Collector(NestedEnv(), frames_per_batch=4).next()
    compact = Collector(NestedEnv(), frames_per_batch=4, compact_obs=True).next()
    gone = set(whole.keys(True, True)) - set(compact.keys(True, True))
    shown = NestedEnv().observation_spec.keys(True, True)
    assert gone == {next_key(key) for key in shown}
    assert any(len(key) > 2 for key in gone)


def test_set_truncated_marks_the_end_of_every_batch(of_batches) -> None:
    """The last frame is truncated, and therefore done."""
    batches = of_batches(
        Collector(
            lambda: CountingEnv(max_steps=9), frames_per_batch=4, total_frames=8, set_truncated=True
        )
    )
    for batch in batches:
        flags = [batch["next", name].flatten().tolist() for name in ("truncated", "done")]
        assert flags == [[False, False, False, True]] * 2
        assert not batch["next", "terminated"].any()


def test_steps_are_skipped_by_a_postproc() -> None:
    """`MultiStep` accumulates rewards: the next observation is shifted by n steps."""
    data = Collector(
        lambda: CountingEnv(max_steps=9), frames_per_batch=6, postproc=MultiStep(0.5, 3)
    ).next()
    assert not (data[..., 1:]["observation"] == data[..., :-1]["next", "observation"]).all()
    shift = data["next", "observation"] - data["observation"]
    assert shift.flatten().tolist()[:4] == [3, 3, 3, 3]


def test_random_steps_of_several_environments_are_collected_in_columns(
    tmp_path: Path, cart
) -> None:
    """`policy=env.rand_step`, 22 frames of three environments, dumped after every batch."""
    env = SerialEnv(3, cart)
    env.set_seed(0)
    with pytest.warns(UserWarning, match="24"):
        collector = SyncDataCollector(
            env, policy=env.rand_step, total_frames=96, frames_per_batch=22
        )
    rb = ReplayBuffer(storage=LazyMemmapStorage(100, ndim=2))
    rb_test = ReplayBuffer(storage=LazyMemmapStorage(100, ndim=2))
    for data in collector:
        rb.extend(data)
        rb.dumps(tmp_path / "rows")
        rb_test.loads(tmp_path / "rows")
        assert (rb_test[:] == rb[:]).all()


def test_a_collector_that_samples_meanwhile_learns_from_slices(cart) -> None:
    """`collector.start()`, then samples without leaks, and `wait` or `shutdown` at the end."""
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(1_000),
        sampler=SliceSampler(num_slices=4, slice_len=8, strict_length=False),
        batch_size=32,
    )
    with Collector(
        cart, frames_per_batch=50, total_frames=600, replay_buffer=buffer, trajs_per_batch=2
    ) as collector:
        collector.start()
        for _ in range(5):
            sample = buffer.sample()
            assert len(sample) <= 32
            assert not check_layout(sample).errors
        collector.wait()
    assert len(buffer) == 600


def test_aggregates_need_no_padding() -> None:
    """Returns and lengths are grouped by id on the flat batch."""
    env = EpisodeStepEnv([(2, "terminated"), (4, "truncated")])
    batch = Collector(env, frames_per_batch=8).next()
    _, inverse = batch[IDS].unique(return_inverse=True)
    assert inverse.bincount().tolist() == [2, 4, 2]
    zeros = torch.zeros(3)
    sums = zeros.index_add(0, inverse, batch["next", "reward"].flatten())
    assert sums.tolist() == [
        float(batch["next", "reward"][batch[IDS] == name].sum()) for name in batch[IDS].unique()
    ]


def test_a_policy_may_be_any_callable_that_returns_what_it_wrote() -> None:
    """A step merges what the policy returns, and keeps what it does not write."""

    def policy(root: TensorDictBase) -> TensorDict:
        return TensorDict(
            {"action": torch.tensor([True, False]), "note": root["observation"] * 2},
            root.batch_size,
        )

    batch = Collector(lambda: CountingEnv(max_steps=9), policy, frames_per_batch=3).next()
    assert batch["note"].flatten().tolist() == [0, 2, 4]
    assert batch["action"].tolist() == [[True, False]] * 3


def test_the_quick_start_collects_in_place_with_a_flattened_policy() -> None:
    """Neither steps nor policy go through tensordicts."""
    env = SerialEnv(8, lambda: GymEnv("CartPole-v1"))
    actor = ProbabilisticActor(
        TensorDictModule(MLP(4, 2, num_cells=[32]), ["observation"], ["logits"]),
        in_keys=["logits"],
        spec=GymEnv("CartPole-v1").action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    collector = Collector(env, actor, frames_per_batch=512, total_frames=1024)
    for _ in collector:
        steps, policy = collector.explain().splitlines()
        assert steps.startswith("steps: in place")
        assert policy == "policy: flattened into 2 calls on tensors"
        assert collector.stats()["policy"]["verified"]

"""The collector in one process: plays, marks, and hands batches out or stores them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from tensordict import TensorDictBase
from tensordict.nn import InteractionType

from rl_collect.arguments import check_switches
from rl_collect.background_loop import TimeLimit
from rl_collect.batches.assembler import BatchAssembler, in_range
from rl_collect.env_runner import EnvRunner
from rl_collect.inputs.devices import (
    CrossDevicePolicy,
    Devices,
    generators,
    mover,
    policy_on,
    set_generators,
)
from rl_collect.inputs.environments import EnvSource, limit_trajectories, make_env
from rl_collect.inputs.policies import as_policy, check_keys
from rl_collect.interface import CollectorInterface, between_batches, last_known
from rl_collect.options import CollectorOptions
from rl_collect.weights.load import PolicyWeights
from rl_envs import EnvBase, wire_policy
from rl_layout import split_trajectories
from rl_tensordict.arguments import check_state, local_device


class Collector(CollectorInterface):
    """Plays an environment with a policy, and returns batches `[*B, T]` with all markers.

    What is between two batches is kept, so the data of a trajectory does not depend on where
    batches end. Iteration ends after `total_frames`; a second iterator continues where
    the first one stopped. With a `replay_buffer` the batches go there, and iterating yields None.

    Args:
        create_env_fn: an environment, a function that makes one, or several of these.
        policy: a tensordict module, an `nn.Module` of observations, any callable on a tensordict,
            or None or `env.rand_step` for random actions.
        frames_per_batch: steps in a batch, of all environments together; rounded up to a multiple
            of the environments.
        total_frames: steps to play in all; -1 for no end.
        device: for `policy_device` and `storing_device` that are not named. The environment stays
            on its device; its outputs are moved.
        env_device: where to bring the environment, by its `to`.
        policy_device: where the policy acts. A module that is elsewhere stays there; a copy acts,
            which `update_policy_weights_` brings up to date.
        storing_device: where batches go. Their `device` is set where this or `device` is given,
            and None otherwise.
        no_cuda_sync: return a batch while its copy to the CPU may be under way, because the caller
            waits. Copies that a policy, an environment, a buffer, `postproc` or another step of
            this collector reads are waited for all the same.
        create_env_kwargs: arguments for `create_env_fn`.
        init_random_frames: actions are random until so many steps are played. The policy runs all
            the same, for what else it writes; its log-probabilities are NaN in these steps.
        max_frames_per_traj: truncate trajectories after so many steps; None or -1 for none.
        reset_at_each_iter: reset every environment before each batch.
        set_truncated: mark the last step of each batch as truncated; what follows begins new
            trajectories, although the environment continues.
        split_trajs: return padded trajectories `[S, L]` instead.
        compact_obs: leave out next observations, which the rows after hold.
        postproc: changes each batch.
        pre_collect_hook: called before each batch is played.
        post_collect_hook: called with each batch before it is returned or stored.
        track_traj_ids: write ids and steps.
        auto_register_policy_transforms: give the environment what recurrent parts need.
        replay_buffer: anything with `extend`; where batches go.
        extend_buffer: write batch by batch; otherwise step by step, by `add`.
        trajs_per_batch: return so many whole trajectories at a time, end to end, and after
            the last frame what is unfinished, as truncations; with a buffer, each `extend` holds
            the whole trajectories that a batch completed.
        max_unfinished_frames: with `trajs_per_batch`, most steps to hold; at that bound the longest
            pieces are written as truncations.
        exploration_type: how a probabilistic policy acts.
        producer: high bits of the trajectory ids; drawn where None.
        progress: show a bar.
        profile: name rollout, policy, marks and storing for torch's profiler, as
            "rl_collect.rollout" and so on.
        shutdown_timeout_s: longest time for `shutdown` to wait for a batch in the background.

    Attributes:
        env: the environment, transforms and all.
        policy: what acts.

    Raises:
        ValueError: options that exclude each other, a number out of range, or a policy that cannot
            be copied to `policy_device`.
        NotImplementedError: the environment cannot be moved to `env_device`.
        TypeError: something is no environment, no policy, or no buffer.
        KeyError: the policy reads what the environment lacks, or writes no action.

    Example:
        >>> from rl_envs.testing import CountingEnv
        >>> collector = Collector(CountingEnv(max_steps=3), frames_per_batch=5, total_frames=10)
        >>> [batch["collector", "traj_step"].tolist() for batch in collector]
        [[0, 1, 2, 0, 1], [2, 0, 1, 2, 0]]
    """

    def __init__(  # noqa: PLR0913 - the arguments are the field's
        self,
        create_env_fn: EnvSource,
        policy: Any = None,
        *,
        frames_per_batch: int,
        total_frames: int = -1,
        device: Any = None,
        env_device: Any = None,
        policy_device: Any = None,
        storing_device: Any = None,
        no_cuda_sync: bool = False,
        create_env_kwargs: Mapping[str, Any] | None = None,
        init_random_frames: int | None = None,
        max_frames_per_traj: int | None = None,
        reset_at_each_iter: bool = False,
        set_truncated: bool = False,
        split_trajs: bool = False,
        compact_obs: bool = False,
        postproc: Callable[[TensorDictBase], TensorDictBase] | None = None,
        pre_collect_hook: Callable[[], Any] | None = None,
        post_collect_hook: Callable[[TensorDictBase], Any] | None = None,
        track_traj_ids: bool = True,
        auto_register_policy_transforms: bool = True,
        replay_buffer: Any = None,
        extend_buffer: bool = True,
        trajs_per_batch: int | None = None,
        max_unfinished_frames: int = 1_000_000,
        exploration_type: InteractionType = InteractionType.RANDOM,
        producer: int | None = None,
        progress: bool = False,
        profile: bool = False,
        shutdown_timeout_s: float = 60.0,
    ) -> None:
        options = self.options = CollectorOptions.of(locals())
        super().__init__(
            total_frames, replay_buffer, progress=progress, shutdown_timeout_s=shutdown_timeout_s
        )
        env = make_env(create_env_fn, create_env_kwargs)
        env = env if env_device is None else env.to(local_device("env_device", env_device))
        env = limit_trajectories(env, max_frames_per_traj)
        self.weights = PolicyWeights(policy, policy_on(policy, *options.acting_device))
        self.policy = as_policy(self.weights.acting, env)
        is_wired = auto_register_policy_transforms and self.policy is not None
        self.env: EnvBase = wire_policy(env, self.policy) if is_wired else env
        check_keys(self.policy, self.env)
        self.devices = Devices.of(env.device, self.policy, **options.devices)
        self.batches = self._assembler()
        self._named_device = options.named_device
        self._deliver = in_range("rl_collect.hand_out", self._delivered, is_on=options.profile)

    def _assembler(self) -> BatchAssembler:
        options, devices, acting = self.options, self.devices, self.policy
        options.check_sizes(self.env)
        to_env, to_policy = mover(devices.env), mover(devices.policy)
        store = mover(devices.storing, synchronise=not options.caller_waits, clears=True)
        if acting is not None and devices.policy != devices.env:
            acting = CrossDevicePolicy(acting, to_policy, to_env)
        runner = EnvRunner(self.env, acting, options.exploration_type, is_profiled=options.profile)
        return BatchAssembler(runner, options, store, devices.storing)

    # batches

    @between_batches
    def rollout(self) -> TensorDictBase:
        """Play one batch, without postproc and buffer.

        Returns:
            The steps `[*B, T]` with all markers, on the storing device.

        Raises:
            RuntimeError: the collector was shut down.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> collector = Collector(CountingEnv(), frames_per_batch=4)
            >>> collector.rollout()["is_init"].flatten().tolist()
            [True, False, False, False]
        """
        batch = self.batches.play()
        return batch if self._named_device is None else batch.to(self._named_device)

    @property
    def frames(self) -> int:
        """Steps played so far."""
        return self.batches.frames

    @property
    def policy_version(self) -> int:
        """How often the weights were changed; each row carries the version that acted."""
        return self.batches.policy_version

    def _batch(self) -> TensorDictBase | None:
        """Play what is returned next, and hand it out or store it."""
        options, before, batch = self.options, self.batches.frames, None
        if options.trajs_per_batch is not None:
            batch = self._trajectory_batch(options.trajs_per_batch)
        elif options.extend_buffer:
            is_stored = options.replay_buffer is not None
            batch = self._store_batch() if is_stored else self._deliver(self.batches.play())
        else:
            self._add_steps()
        if options.progress:
            episodes = self.batches.episodes
            self._progress.add(self.frames - before, episodes.finished, episodes.mean_return)
        return batch

    def _store_batch(self) -> TensorDictBase | None:
        """Plays a batch into the buffer: from its arrays where that takes them."""
        buffer = self.options.replay_buffer
        take = getattr(buffer, "extend_arrays", None)
        if take is None or getattr(take, "__self__", None) is not buffer:  # that of one in it
            batch: TensorDictBase | None = self.batches.play()
        else:
            batch = self.batches.play_into(take)
        return None if batch is None else self._deliver(batch)

    def _trajectory_batch(self, wanted: int) -> TensorDictBase | None:
        """Whole trajectories: what one more batch completes for a buffer, else so many."""
        if self.options.replay_buffer is not None:
            self.batches.play_trajectories()
            found = self.batches.pop()
        else:
            while self.batches.waiting < wanted and self._has_frames_left():
                self.batches.play_trajectories()
            if not self._has_frames_left():
                self.batches.finish()
            found = self.batches.pop(wanted)
        return None if found is None else self._deliver(found)

    def _add_steps(self) -> None:
        buffer, hook = self.options.replay_buffer, self.options.post_collect_hook
        for step in self.batches.play_by_step():
            if hook is not None:
                hook(step)
            (buffer.extend if step.ndim else buffer.add)(step)

    def pop_trajectories(self) -> TensorDictBase | None:
        """Return or store the complete trajectories that are held, without playing on."""
        batch = self.batches.pop()
        return None if batch is None else self._deliver(batch)

    def _delivered(self, batch: TensorDictBase) -> TensorDictBase | None:
        options = self.options
        if self._named_device is not None:
            batch = batch.to(self._named_device)
        if options.postproc is not None:
            batch = options.postproc(batch)
            if not isinstance(batch, TensorDictBase):
                msg = f"postproc must return the batch to return: got {type(batch).__name__}."
                raise TypeError(msg)
        if options.split_trajs:
            batch = split_trajectories(batch)
        if options.post_collect_hook is not None:
            options.post_collect_hook(batch)
        if options.replay_buffer is None:
            return batch
        options.replay_buffer.extend(batch)
        return None

    # what is changed from outside

    @between_batches
    def reset(self) -> None:
        """Reset every environment before the next step; what follows are new trajectories.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> collector = Collector(CountingEnv(), frames_per_batch=3)
            >>> _ = collector.next()
            >>> collector.reset()
            >>> collector.next()["collector", "traj_step"].tolist()
            [0, 1, 2]
        """
        self.batches.reset()

    @between_batches
    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environments, and reset them before the next step.

        Actions are drawn from torch's global generator: seed that by `torch.manual_seed`.

        Args:
            seed: a whole number, 0 or more.
            static_seed: seed all environments alike.

        Returns:
            A seed for the next collector, far from this one.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> Collector(CountingEnv(), frames_per_batch=3).set_seed(0) > 0
            True
        """
        check_switches(static_seed=static_seed)
        following = self.env.set_seed(seed, static_seed)
        self.reset()
        return following

    @between_batches
    def update_policy_weights_(self, policy_or_weights: Any = None) -> None:
        """Give the policy new weights; rows played from now on carry the next version.

        Args:
            policy_or_weights: a policy of the same kind, a state dictionary, or a tensordict of
                parameters; None for those of the policy that the collector was given, as where
                they were changed in place.

        Raises:
            TypeError: the policy has no weights, or these are none.
            ValueError: a weight is missing or unknown, has another shape, or a dtype that cannot be
                cast. The weights stay as they were.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> from torch import nn
            >>> collector = Collector(CountingEnv(), nn.Linear(1, 2), frames_per_batch=3)
            >>> collector.update_policy_weights_(collector.policy)
            >>> collector.policy_version
            1
        """
        self.weights.update(policy_or_weights, self.policy)
        self.batches.policy_version += 1

    @last_known
    def stats(self) -> dict[str, Any]:
        """Tell how far it is, and how; after `shutdown`, how far it came.

        Returns:
            `frames`, `episodes`, `mean_return`, `mean_length`, `unfinished_frames`,
            `policy_version`, and `policy`: how the policy is called.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> Collector(CountingEnv(), frames_per_batch=3).stats()["frames"]
            0
        """
        episodes, plan = self.batches.episodes, self.batches.plan
        return {
            "frames": self.frames,
            "episodes": episodes.finished,
            "mean_return": episodes.mean_return,
            "mean_length": episodes.mean_length,
            "unfinished_frames": self.batches.unfinished,
            "policy_version": self.policy_version,
            "policy": None if plan is None else plan.stats(),
        }

    @last_known
    def explain(self) -> str:
        """Say how batches are played, and why in no faster way.

        Returns:
            Two lines: how steps are taken (in place, on tensors, or through tensordicts), and how
            the policy is called (as plain functions, or as it is).

        Example:
            >>> from rl_envs import GymEnv
            >>> print(Collector(GymEnv("CartPole-v1"), frames_per_batch=3).explain())
            steps: in place: the environment writes its rows into the columns of the batch
            policy: none, actions are drawn at random for a whole batch
        """
        return self.batches.explain()

    # state

    @between_batches
    def state_dict(self) -> dict[str, Any]:
        """Save everything that the next batch depends on, the policy's weights included.

        Returns:
            Tensors, numbers and dictionaries of them, which `torch.save` can write.

        Raises:
            NotImplementedError: the environment cannot save its state.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> sorted(Collector(CountingEnv(), frames_per_batch=3).state_dict())
            ['batches', 'env', 'policy', 'random']
        """
        self.batches.cut_if_moved()  # what is saved is one position
        return {
            "batches": self.batches.state_dict(),
            "policy": self.weights.state_dict(),
            "env": self.env.state_dict(),
            "random": generators(),
        }

    @between_batches
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue as the collector that was saved would have, bit for bit, ids included.

        Args:
            state: what `state_dict` of a collector over the same environments returned.

        Raises:
            NotImplementedError: the environment cannot load a state.
            TypeError: it is no dictionary.
            KeyError: it is the state of something else.
            ValueError: it belongs to other environments. The collector is unchanged then.
        """
        check_state(type(self).__name__, state, ("batches", "policy", "env", "random"))
        before = deepcopy(self.state_dict())
        try:
            self._load(state)
        except BaseException:
            self._load(before)
            raise

    def _load(self, state: Mapping[str, Any]) -> None:
        self.batches.load_state_dict(state["batches"])
        self.env.load_state_dict(state["env"])
        self.batches.note_moves()
        self.weights.load_state_dict(state["policy"])
        set_generators(state["random"])

    # the end

    def _write_unfinished(self, time_limit: TimeLimit) -> None:
        self.batches.cut_unfinished()
        if self.options.replay_buffer is not None:
            self.pop_trajectories()

    def _close(self, time_limit: TimeLimit) -> None:
        self.env.close()

    def __repr__(self) -> str:
        total = self._total
        return (
            f"{type(self).__name__}({self.env!r}, {self.frames_of_batch} frames a batch, "
            f"{self.frames} of {'any number' if total == -1 else total} played)"
        )

    @property
    def frames_of_batch(self) -> int:
        """Steps that a batch has, of all environments together."""
        return self.batches.num_steps * max(self.env.batch_size.numel(), 1)

    def _count_stored(self) -> int:
        return self.frames - self.batches.unfinished

    def _waits(self) -> bool:
        return self.batches.waiting > 0


SyncDataCollector = Collector

"""Several environments in one process, stepped in turn: the oracle of the parallel ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_envs.batched.remote_env import call_each, is_method, updated
from rl_envs.env import checks
from rl_envs.env.arrays import RowArrays
from rl_envs.env.binding import RowBinding
from rl_envs.env.env import EnvBase
from rl_envs.env.foreign import require_env
from rl_envs.env.forwarding import attributes_of, is_own
from rl_envs.env.interface import Binding
from rl_envs.env.spec_leaves import SpecLeaves, has_form
from rl_envs.env.specs import SPECS
from rl_layout import keys
from rl_specs import stack_specs
from rl_tensordict.arguments import check_whole
from rl_tensordict.types import Array
from rl_workers import Portable

EnvMakers = Callable[[], EnvBase] | Sequence[Callable[[], EnvBase]]


class SerialEnv(EnvBase):
    """A batch of environments, `[num_workers, *B]`, that are stepped one after the other.

    All data of worker i is row i; rows whose sizes vary (-1 in a spec) are in lazy stacks. Seeding
    with s gives the first worker s, and each further one the seed that `set_seed` of the one before
    returned.

    `env[i]` is environment i. Another attribute than those here comes as a list of one for each
    environment; a method as a function that calls each and returns a list.

    Args:
        num_workers: how many environments.
        create_env_fn: makes one of them; or one function each.
        create_env_kwargs: arguments for every call; or one dictionary each.

    Attributes:
        envs: the environments.

    Raises:
        TypeError: an environment was given, and no function that makes one.
        ValueError: the number of functions is another one, the environments differ in specs, two
            of them step the same object, or one has a transform that must stand outside.

    Example:
        >>> from rl_envs.testing import CountingEnv
        >>> env = SerialEnv(3, lambda: CountingEnv(2))
        >>> env.rollout(4, break_when_any_done=False)["next", "done"].sum(1).flatten().tolist()
        [2, 2, 2]
    """

    def __init__(
        self,
        num_workers: int,
        create_env_fn: EnvMakers,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        makers = environment_makers(num_workers, create_env_fn)
        kwargs = one_per_worker(num_workers, create_env_kwargs or {}, "create_env_kwargs")
        self._makers, self._kwargs = makers, kwargs
        self.envs = _made(makers, kwargs)
        first = self.envs[0]
        super().__init__(device=first.device, batch_size=(num_workers, *first.batch_size))
        for name in SPECS:
            setattr(self, name, stack_specs([getattr(first, name).clone() for _ in self.envs], 0))
        self._describe()

    def _describe(self) -> None:
        self._own_rows = self._has_steps_of(SerialEnv)
        self.native_rows = self._own_rows and all(env.native_rows for env in self.envs)
        self.reads_actions_only = all(env.reads_actions_only for env in self.envs)
        self.marks_missing = any(env.marks_missing for env in self.envs)
        self.check_values = all(env.check_values for env in self.envs)
        self.flags_agree = all(env.flags_agree for env in self.envs)

    @property
    def num_workers(self) -> int:
        """How many environments there are."""
        return len(self.envs)

    @property
    def _inside(self) -> Sequence[EnvBase]:
        return self.envs

    def __getitem__(self, index: int | slice) -> Any:
        return self.envs[index]

    def __getattr__(self, name: str) -> Any:
        if is_own(self, name):
            return object.__getattribute__(self, name)
        found = attributes_of(type(self).__name__, self.envs, name)
        return partial(call_each, found) if is_method(found[0]) else found

    def update_kwargs(self, kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Make the environments again, with some of their arguments replaced.

        Args:
            kwargs: arguments for all; or one dictionary each. The others stay as they are.

        Raises:
            ValueError: they are as many as no environments, or a new one has other specs.
            Exception: what making an environment raised; the old ones stay.

        Example:
            >>> from rl_envs.testing import CountingEnv
            >>> env = SerialEnv(2, CountingEnv, {"max_steps": 5})
            >>> env.update_kwargs([{"max_steps": 1}, {"max_steps": 2}])
            >>> env.endings
            [[(1, 'terminated')], [(2, 'terminated')]]
        """
        checks.check_open(self)
        given = one_per_worker(self.num_workers, kwargs, "kwargs")
        together = updated(self._kwargs, given)
        made = _made(self._makers, together, like=self.envs[0])
        for env in self.envs:
            env.close()
        self._kwargs, self.envs, self.is_started = together, made, False
        self._describe()
        self.count_move()

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environments, each from the one before, or all alike."""
        super().set_seed(seed, static_seed)
        for env in self.envs:
            seed = env.set_seed(seed, static_seed)
        return seed

    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """Start all trajectories, or the rows of a mask; see `EnvBase.reset`."""
        if self.layout.has_fixed_forms:
            return super().reset(tensordict, **kwargs)
        checks.check_open(self)
        checks.check_batch(self, tensordict)
        roots = [None] * self.num_workers if tensordict is None else tensordict.unbind(0)
        pairs = zip(self.envs, roots, strict=True)
        made = stack_rows([env.reset(root, **kwargs) for env, root in pairs])
        self.is_started = True
        return made

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Take one step; see `EnvBase.step`."""
        if self.layout.has_fixed_forms:
            return super().step(tensordict)
        checks.check_step(self, tensordict)
        tensordict = self.layout.fit_actions(tensordict, checks_values=self.check_values)
        pairs = zip(self.envs, tensordict.unbind(0), strict=True)
        return stack_rows([env.step(root) for env, root in pairs])

    def render(self) -> Tensor:
        """Draw every environment: frames uint8 `[num_workers, *B, H, W, 3]`."""
        return torch.stack([env.render() for env in self.envs])

    def bind(self, root: RowArrays, after: RowArrays) -> Binding:
        """Bind the columns `[num_workers, *B, T, ...]` of a batch."""
        if not self._own_rows or self.has_steps_set():
            return RowBinding(self, root, after)
        return SerialBinding(self, root, after)

    def bind_step(self, root: RowArrays, after: RowArrays) -> Binding:
        """Bind columns of one step: each environment as it is stepped by hand."""
        if not self._own_rows or self.has_steps_set():
            return RowBinding(self, root, after)
        return SerialBinding(self, root, after, is_one_step=True)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        if tensordict is None:
            return stack_rows([env.reset(**kwargs) for env in self.envs])
        first = self.envs[0]
        shown = first.layout.shown
        names = [key for key, _ in shown]
        pairs = zip(self.envs, split_root(tensordict, shown), strict=True)
        return stack_rows([env.reset(root, **kwargs).select(*names) for env, root in pairs])

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        pairs = zip(self.envs, tensordict.unbind(0), strict=True)
        return stack_rows([env.step(root).get(keys.NEXT) for env, root in pairs])

    def _set_seed(self, seed: int) -> None:
        """Nothing is random alongside the environments."""

    def _get_state(self) -> dict[str, Any]:
        return {"envs": [env.state_dict() for env in self.envs]}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        states = saved_states(state, len(self.envs))
        for env, inner in zip(self.envs, states, strict=True):
            env.load_state_dict(inner)

    def _to(self, device: torch.device) -> None:
        for env in self.envs:
            env.to(device)
        self.native_rows = self._own_rows and all(env.native_rows for env in self.envs)
        self.reads_actions_only = all(env.reads_actions_only for env in self.envs)

    def _close(self) -> None:
        for env in self.envs:
            env.close()


class SerialBinding:
    """A `SerialEnv` bound to the columns of a batch: each environment to its own row."""

    def __init__(
        self, env: SerialEnv, root: RowArrays, after: RowArrays, *, is_one_step: bool = False
    ) -> None:
        self.env, self._root, self._after, self._is_one_step = env, root, after, is_one_step
        self._bind()

    def _bind(self) -> None:
        self._bound = self.env.envs
        self.bindings: list[Binding] = [
            (inner.bind_step if self._is_one_step else inner.bind)(
                _row(self._root, i), _row(self._after, i)
            )
            for i, inner in enumerate(self._bound)
        ]

    def start(self, mask: Array | None = None) -> None:
        """Reset the environments of a mask `[N, *B, 1]`, or all, and write column 0 of the root."""
        if self._bound is not self.env.envs:  # they were made again
            self._bind()
        for i, binding in enumerate(self.bindings):
            if mask is None or mask[i].any():
                binding.start(None if mask is None else mask[i])
        self.env.is_started = True

    def step(self, t: int) -> bool:
        """Step from column t of the root into column t of `"next"`; say whether a row is done."""
        over = [binding.step(t) for binding in self.bindings]
        return any(over)

    def advance(self, t: int) -> None:
        """Write column t + 1 of the root; rows that are done in column t are reset."""
        for binding in self.bindings:
            binding.advance(t)

    def set_policy_next_keys(self, names: set[tuple[str, ...]]) -> None:
        """Set the entries of `"next"` that the policy writes."""
        for binding in self.bindings:
            binding.set_policy_next_keys(names)


def stack_rows(rows: Sequence[TensorDictBase]) -> TensorDictBase:
    """Stack one tensordict of each environment; lazily where their shapes differ."""
    made: TensorDictBase = TensorDict.maybe_dense_stack(list(rows), 0)
    return made


def split_root(tensordict: TensorDictBase, shown: SpecLeaves) -> list[TensorDictBase]:
    """Split the root of a partial reset into one root for each environment."""
    # the caller merges the rows that continue, whose entries may have passed transforms: an entry
    # of another form than the environment's own is replaced by zeros
    roots = []
    for row in tensordict.unbind(0):
        root = row.copy()
        for key, spec in shown:
            held = root.get(key, None)
            if held is None or not has_form(spec, held):
                root.set(key, spec.zero())
        roots.append(root)
    return roots


def _made(
    makers: Sequence[Portable], kwargs: Sequence[Mapping[str, Any]], like: EnvBase | None = None
) -> list[EnvBase]:
    """Make environments, all alike."""
    envs = [make(**given) for make, given in zip(makers, kwargs, strict=True)]
    for env in envs:
        require_env(env, EnvBase, "create_env_fn must make an environment of rl_envs")
    for number, env in enumerate(envs):
        checks.check_masks(env)
        env.check_place("worker")
        _check_alike(like or envs[0], env, number)
    _check_apart(envs)
    return envs


def _row(columns: RowArrays, i: int) -> dict[tuple[str, ...], Array]:
    return {key: column[i] for key, column in columns.items()}


def environment_makers(num_workers: int, create_env_fn: EnvMakers) -> list[Portable]:
    """One function for each worker, which can travel to another process."""
    named = [create_env_fn] if isinstance(create_env_fn, str) else create_env_fn
    if isinstance(named, Sequence) and (names := [one for one in named if isinstance(one, str)]):
        msg = (
            f"create_env_fn: expected a function that makes an environment, got {names[0]!r}: "
            f"give lambda: GymEnv({names[0]!r})."
        )
        raise TypeError(msg)
    makers = one_per_worker(num_workers, create_env_fn, "create_env_fn")
    return [Portable(make, makes="an environment") for make in makers]


def one_per_worker(number: int, given: Any, name: str) -> list[Any]:
    """Return one argument for each worker: the same for all, or the items of a sequence."""
    check_whole("num_workers", number, 1)
    if not isinstance(given, Sequence):
        return [given] * number
    if len(given) != number:
        msg = f"{name} must be one, or one for each of {number} workers: got {len(given)}."
        raise ValueError(msg)
    return list(given)


def _check_alike(first: EnvBase, env: EnvBase, number: int) -> None:
    for name in SPECS:
        one, other = getattr(first, name), getattr(env, name)
        if one != other:
            msg = f"worker {number} differs from worker 0 in {name}: {other} against {one}."
            raise ValueError(msg)


def _check_apart(envs: Sequence[EnvBase]) -> None:
    """Raise for two environments of which a step of the one moves the other."""
    owners: dict[int, int] = {}
    for number, env in enumerate(envs):
        for stepped in env.stepped_objects:
            owner = owners.setdefault(id(stepped), number)
            if owner != number:
                msg = (
                    f"workers {owner} and {number} step one environment, {stepped}: make a new "
                    "one in each call of create_env_fn."
                )
                raise ValueError(msg)


def shares_of(num_workers: int, num_processes: int | None) -> list[slice]:
    """Split the environments over the processes into slices whose sizes differ by at most one."""
    check_whole("num_workers", num_workers, 1)
    processes = num_workers if num_processes is None else num_processes
    if not 1 <= processes <= num_workers:
        msg = f"num_processes must be from 1 to num_workers, {num_workers}: got {processes}."
        raise ValueError(msg)
    bounds = [process * num_workers // processes for process in range(processes + 1)]
    return [slice(*pair) for pair in pairwise(bounds)]


def saved_states(state: Mapping[str, Any], count: int) -> list[Any]:
    """Return the saved state of each environment; raise if there are more or fewer than `count`."""
    states = list(state["envs"])
    if len(states) != count:
        msg = f"expected the state of {count} environments: got {len(states)}."
        raise ValueError(msg)
    return states

"""Puts what an environment renders into its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_specs import Bounded, Composite, TensorSpec, Unbounded
from rl_tensordict import NestedKey, as_tensor, as_tuple, find
from rl_tensordict.arguments import (
    check_calls,
    check_flags,
    check_type,
    check_whole,
    key_list,
    shown,
)
from rl_transforms import Place, Transform


class PixelRenderTransform(Transform):
    """Writes what the environment renders under a key, at each reset and each step.

    It renders the environment that it is put around, so it works in one environment, around
    several, and in a worker process. The environment is reset once when the transform is added, to
    see the size of a frame.

    Args:
        out_keys: one key; ``["pixels"]`` by default.
        preproc: changes each frame before it is written, as a function of what is rendered.
        as_non_tensor: accepted where false. Frames are tensors here, so that they can be stored.
        render_method: name of the method that renders.
        pass_tensordict: pass the root, or what a step returned, to that method, as environments
            without a state of their own need.
        skip: render one step of so many; the steps between repeat the frame before. Resets are
            rendered always.
        **kwargs: passed to the method.

    Raises:
        ValueError: there is not one key, ``skip`` is below 1, or an environment around which it is
            put cannot render.
        TypeError: an argument has another type.
        NotImplementedError: the environment has no frames.

    Example:
        >>> from rl_envs import TransformedEnv
        >>> from rl_envs.testing import CountingEnv
        >>> class Dark(CountingEnv):
        ...     def render(self):
        ...         return torch.zeros(48, 64, 3, dtype=torch.uint8)
        >>> TransformedEnv(Dark(), PixelRenderTransform()).rollout(4)["next", "pixels"].shape
        torch.Size([4, 48, 64, 3])
    """

    places = frozenset[Place]({"environment", "worker"})

    def __init__(
        self,
        out_keys: Sequence[NestedKey] | None = None,
        preproc: Callable[[Any], Any] | None = None,
        as_non_tensor: bool | None = None,
        render_method: str = "render",
        pass_tensordict: bool = False,
        *,
        skip: int = 1,
        **kwargs: Any,
    ) -> None:
        keys = key_list("out_keys", ["pixels"] if out_keys is None else out_keys)
        super().__init__()
        if len(keys) != 1:
            msg = f"out_keys: expected one key for frames, got {keys}."
            raise ValueError(msg)
        check_calls(preproc=preproc)
        if as_non_tensor:
            msg = "as_non_tensor: frames are written as tensors. Let preproc give them one shape."
            raise ValueError(msg)
        check_type("render_method", render_method, str, "the name of a method")
        check_flags(pass_tensordict=pass_tensordict)
        check_whole("skip", skip, 1)
        (self.key,) = keys
        self.preproc, self.render_method, self.pass_tensordict = (
            preproc,
            render_method,
            pass_tensordict,
        )
        self.skip, self.options = skip, kwargs
        self.num_steps = 0  # since the last reset of all rows
        self._env: Any = None
        self._frame: Tensor | None = None  # of the environment that is known, the first

    def attach(self, env: Any) -> None:
        """Get to know the environment that is rendered.

        Args:
            env: the environment without transforms.

        Raises:
            ValueError: it has no such method, or resets rows inside a step, after which their last
                state cannot be rendered.
        """
        if env is self._env:
            return
        if not callable(getattr(env, self.render_method, None)):
            msg = f"{type(env).__name__} has no method {self.render_method!r} that renders it: "
            raise ValueError(msg + "write one, or name another with render_method=.")
        metadata = getattr(getattr(env, "env", None), "metadata", None)
        mode = metadata.get("autoreset_mode") if isinstance(metadata, Mapping) else None
        if getattr(mode, "name", "") == "SAME_STEP":
            msg = "the environment resets rows inside a step, so their last state is not rendered: "
            raise ValueError(msg + "make it with autoreset_mode=AutoresetMode.DISABLED.")
        self._env, self._frame = env, None

    def transform_observation_spec(self, spec: Composite) -> Composite:
        """Add the spec of the frames.

        Args:
            spec: of the observations, ``[*B]``.

        Returns:
            A copy with the key.
        """
        if self._env is None:
            return spec
        if self._frame is None:
            root = self._env.reset()  # most environments render nothing before
            self._frame = self._rendered(root)
        frame, dtype = self._frame, self._frame.dtype
        leaf: TensorSpec = Unbounded(frame.shape, dtype=dtype)
        if dtype == torch.uint8:
            leaf = Bounded(0, 255, frame.shape, dtype=dtype)
        copy = spec.clone()
        copy.set(self.key, leaf if copy.device is None else leaf.to(copy.device))
        return copy

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Write the frame after a reset.

        Args:
            root: ``[*B]``, after the reset.
            mask: bool ``[*B]``, the rows that were reset; None if all were.

        Returns:
            The root with the frame. Rows that were not reset keep theirs.
        """
        frame = self._rendered(root)
        before = find(root, as_tuple(self.key))
        if mask is None:
            self.num_steps = 0
        elif before is not None:
            chosen = mask.reshape(*mask.shape, *[1] * (frame.ndim - mask.ndim))
            frame = torch.where(chosen.to(frame.device), frame, before)
        return self._with(root, frame)

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Write the frame after a step.

        Args:
            root: ``[*B]``, the root of the step.
            after: ``[*B]``, the entries under ``"next"``.

        Returns:
            The entries with the frame; between rendered steps that of the root.
        """
        self.num_steps += 1
        before = find(root, as_tuple(self.key))
        if self.num_steps % self.skip and before is not None:
            return self._with(after, before)
        return self._with(after, self._rendered(after))

    def _with(self, entries: TensorDictBase, frame: Tensor) -> TensorDictBase:
        return entries.copy().set(self.key, frame)

    def _rendered(self, seen: TensorDictBase) -> Tensor:
        """Frames ``[*B, ...]`` of the current state."""
        if self._env is None:
            msg = "the transform renders the environment around which it is put, and is in none: "
            raise ValueError(msg + "TransformedEnv(env, PixelRenderTransform()).")
        given = (seen,) if self.pass_tensordict else ()
        made = getattr(self._env, self.render_method)(*given, **self.options)
        made = made if self.preproc is None else self.preproc(made)
        try:
            frame = as_tensor(made)
        except (TypeError, ValueError, RuntimeError):
            kind = "preproc returned" if self.preproc is not None else "the environment rendered"
            msg = f"{kind} no frame: expected numbers [*B, H, W, C], got {shown(made)}."
            raise ValueError(msg) from None
        batch = seen.batch_size
        if frame.shape[: len(batch)] != batch:  # one picture of all rows
            frame = frame.expand(*batch, *frame.shape)
        # an environment may draw into the same memory again
        return frame.to(seen.device or "cpu", copy=True)

"""Loss of lives as a flag."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_layout import keys
from rl_layout.keys import next_key
from rl_specs import Binary, Composite
from rl_tensordict import NestedKey, as_tuple, find, sibling
from rl_transforms.entries import required, with_entries
from rl_transforms.episodes.groups import group_mask
from rl_transforms.transform import Transform, spec_of, with_specs


class EndOfLife(Transform):
    """Marks the steps that cost a life, without ending the episode.

        end_of_life[t] = lives[t + 1] < lives[t], or done

    In an environment it writes ``("next", eol_key)`` and resets nothing: the flag is an
    observation, not a done flag. On sampled rows it writes the same from the lives in them, where
    it is not there yet; that a slice ends there costs no life. With `mark_done`, in a buffer only,
    they also end there: ``terminated`` and ``done`` are set, so that a learner treats a life as an
    episode; stored rows do not change. A step that was only truncated stays so; where the lives
    are not in the rows, so does one that cost a life. In slices the row after a lost life is
    marked ``is_init``: a recurrent network starts there from the state that is stored in it.

    Args:
        eol_key: the flag, bool in the shape of the done flag.
        lives_key: number of lives left, an observation ``[*B]`` or ``[*B, 1]``.
        done_key: the done flag of the group with these lives.
        mark_done: terminate sampled rows at a lost life; for buffers.

    Raises:
        TypeError: a key is none.

    Example:
        >>> from tensordict import TensorDict
        >>> root = TensorDict({"lives": torch.tensor([3, 3])}, [2])
        >>> no = torch.zeros(2, 1, dtype=torch.bool)
        >>> after = TensorDict({"lives": torch.tensor([3, 2]), "done": no}, [2])
        >>> after = EndOfLife().step(root, after)
        >>> after["end-of-life"].flatten().tolist(), after["done"].flatten().tolist()
        ([False, True], [False, False])
    """

    def __init__(
        self,
        eol_key: NestedKey = "end-of-life",
        lives_key: NestedKey = "lives",
        done_key: NestedKey = keys.DONE,
        mark_done: bool = False,
    ) -> None:
        super().__init__([lives_key], [eol_key])
        keys.as_tuple(done_key)
        self.eol_key, self.lives_key, self.done_key = eol_key, lives_key, done_key
        self.mark_done = mark_done
        if mark_done:  # a done flag would make the environment reset
            self.places = frozenset({"buffer"})
        self._shape: torch.Size | None = None

    def forward(self, batch: TensorDictBase) -> TensorDictBase:
        """Mark the steps of sampled rows; with `mark_done` also terminate them.

        Args:
            batch: TED rows ``[*B]`` or ``[*B, T]``.

        Returns:
            The rows with bool ``("next", eol_key)``.

        Raises:
            KeyError: lives or done flags are missing.
        """
        marked = self._marked(batch)
        if not self.mark_done:
            return marked
        lost_life: Tensor = marked[next_key(self.eol_key)]
        changes: dict[NestedKey, Tensor] = {}
        for name in (keys.TERMINATED, keys.DONE):
            key = next_key(sibling(self.done_key, name))
            flag = required(self, batch, key)
            ended = lost_life
            if name == keys.TERMINATED:  # a truncation is no lost life
                truncated = batch.get(next_key(sibling(self.done_key, keys.TRUNCATED)), None)
                ended = lost_life if truncated is None else lost_life & ~truncated
                ended = ended | self._fell(batch, flag.shape)  # as in a step that a slice cuts
            changes[key] = flag | ended
        return with_entries(marked, changes | self._starts(batch, lost_life))

    def _starts(self, batch: TensorDictBase, lost_life: Tensor) -> dict[NestedKey, Tensor]:
        """The marks of first rows of slices, and of the rows that follow a lost life in one."""
        key = sibling(self.done_key, keys.IS_INIT)
        first, slices = batch.get(key, None), batch.get(keys.SLICE_IDS, None)
        if first is None or slices is None or first.shape != lost_life.shape or batch.ndim != 1:
            return {}
        follows = torch.zeros_like(first)
        same = (slices[1:] == slices[:-1]).reshape(-1, *[1] * (first.ndim - 1))
        follows[1:] = lost_life[:-1] & same
        return {key: first | follows}

    def reset(self, root: TensorDictBase, mask: Tensor | None = None) -> TensorDictBase:
        """Clear the flag in the rows that were reset.

        Args:
            root: ``[*B]``, after the reset.
            mask: bool ``[*B]``, the rows that were reset; None if all were.

        Returns:
            The root with the flag; rows outside the mask keep theirs.

        Raises:
            KeyError: the lives are missing.
        """
        lives, kept = required(self, root, self.lives_key), root.get(self.eol_key, None)
        if mask is not None and kept is not None:
            gone = group_mask(mask, kept.shape, kept.device)
            return with_entries(root, {self.eol_key: kept.masked_fill(gone, value=False)})
        done = root.get(self.done_key, None)
        shape = self._shape if done is None else done.shape
        fresh = torch.zeros(shape or (*root.batch_size, 1), dtype=torch.bool, device=lives.device)
        return with_entries(root, {self.eol_key: fresh})

    def step(self, root: TensorDictBase, after: TensorDictBase) -> TensorDictBase:
        """Mark a step that cost a life.

        Args:
            root: ``[*B]`` with the lives before it.
            after: ``[*B]`` with the lives after it, and the done flag.

        Returns:
            The new ``after``.

        Raises:
            KeyError: lives or the done flag are missing.
        """
        lives_before, lives_after = (required(self, one, self.lives_key) for one in (root, after))
        done = required(self, after, self.done_key)
        lost_life = (lives_after < lives_before).reshape(done.shape) | done
        return with_entries(after, {self.eol_key: lost_life})

    def transform_done_spec(self, spec: Composite) -> Composite:
        """Learn the shape of the flag; the spec itself stays as it is.

        Raises:
            KeyError: there is no such done flag.
        """
        self._shape = spec_of("EndOfLife", spec, self.done_key, "done flag").shape
        return spec

    def transform_observation_spec(self, spec: Composite) -> Composite:
        """Add the flag.

        Raises:
            KeyError: the environment shows no lives.
            ValueError: there is not one number of lives for each done flag.
        """
        hint = " Let the environment show its lives, as an entry of its info."
        lives = spec_of("EndOfLife", spec, self.lives_key, "observation", hint).shape
        shape = torch.Size((*spec.shape, 1)) if self._shape is None else self._shape
        if lives not in (shape, shape[:-1]):
            msg = (
                f"EndOfLife: expected one number for each done flag {list(shape)}: "
                f"{self.lives_key!r} has {list(lives)}."
            )
            raise ValueError(msg)
        return with_specs(spec, {self.eol_key: Binary(shape=shape, dtype=torch.bool)})

    def _marked(self, batch: TensorDictBase) -> TensorDictBase:
        if batch.get(next_key(self.eol_key), None) is not None:
            return batch
        lives_before = required(self, batch, self.lives_key)
        lives_after = required(self, batch, next_key(self.lives_key))
        done = required(self, batch, next_key(self.done_key))
        fell = (lives_after < lives_before).reshape(done.shape)
        return with_entries(batch, {next_key(self.eol_key): fell | self._over(batch, done)})

    def _fell(self, batch: TensorDictBase, shape: torch.Size) -> Tensor | bool:
        """Steps after which there are fewer lives; False where rows do not hold them."""
        names = (as_tuple(self.lives_key), next_key(self.lives_key))
        before, after = (find(batch, name) for name in names)
        if before is None or after is None:
            return False
        fell: Tensor = (after < before).reshape(shape)
        return fell

    def _over(self, batch: TensorDictBase, done: Tensor) -> Tensor:
        """The done flag without the last steps of slices, whose flags the sampler has set."""
        slices = batch.get(keys.SLICE_IDS, None)
        if slices is None or batch.ndim != 1:
            return done
        last = torch.ones_like(slices, dtype=torch.bool)
        last[:-1] = slices[1:] != slices[:-1]
        mask = batch.get(keys.MASK, None)
        if mask is not None:  # the last real step is followed by padding
            last[:-1] |= ~mask[1:]
        last = last.reshape(-1, *[1] * (done.ndim - 1))
        terminated = batch.get(next_key(sibling(self.done_key, keys.TERMINATED)), None)
        return done & ~last if terminated is None else done & (terminated | ~last)

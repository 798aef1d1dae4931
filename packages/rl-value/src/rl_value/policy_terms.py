"""Distribution of an actor on a batch, and its parameters."""

from __future__ import annotations

from functools import partial
from typing import Any

from tensordict import TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import Tensor
from torch.distributions import Distribution

from rl_tensordict import as_key, as_tuple, build, find, nest
from rl_value.direct_call import Key, has_hooks, run, stock


class PolicyTerms:
    """The output of an actor on a batch: parameters now, the distribution on first use."""

    def __init__(self, actor: Any, batch: TensorDictBase) -> None:
        self.batch_size = batch.batch_size
        self.choice: Any = None
        self.parameters: dict[Key, Tensor] = {}
        self._dist: Distribution | None = None
        parts, choice = _parts_of(actor)
        found = None if choice is None else run(parts, partial(find, batch))
        names = [as_tuple(key) for key in choice.in_keys] if found else []
        if found and all(name in found for name in names):
            self.choice = choice
            self.parameters = {name: found[name] for name in names}
        else:
            self._dist = actor.get_dist(batch.copy())

    @property
    def dist(self) -> Distribution:
        """The distribution of actions now."""
        if self._dist is None:
            self._dist = self.distribution_of(*self.parameters.values())
        return self._dist

    def distribution_of(self, *parameters: Tensor) -> Distribution:
        """Make the distribution of other parameters."""
        given = build(nest(dict(zip(self.parameters, parameters, strict=True))), self.batch_size)
        try:
            dist: Distribution = self.choice.get_dist(given)
        except Exception as error:
            shown = [f"{as_key(k)!r} {list(v.shape)}" for k, v in self.parameters.items()]
            note = f"the actor computed {', '.join(shown)}. Look for NaN in what it reads and in "
            error.add_note(f"{note}its weights, and at the class of its distribution.")
            raise
        return dist

    def parameter_of(self, kind: type, name: str) -> Tensor | None:
        """The parameter of a distribution that has this one and no other setting."""
        choice = self.choice
        plain = choice is not None and choice.distribution_class is kind
        if not plain or choice.distribution_kwargs:
            return None
        names = [as_tuple(key)[-1] for key in choice.dist_keys]
        return next(iter(self.parameters.values())) if names == [name] else None


def _parts_of(actor: Any) -> tuple[list[TensorDictModule], Any]:
    """The stock parts of an actor and the choice after them, which is None if there is more."""
    kind, choice = ProbabilisticTensorDictSequential, ProbabilisticTensorDictModule
    if isinstance(actor, kind) and type(actor).get_dist is kind.get_dist:
        *first, last = actor.module
        plain = isinstance(last, choice) and type(last).get_dist is choice.get_dist
        if plain and not actor.return_composite and not has_hooks(actor) and stock(first):
            return first, last
    return [], None

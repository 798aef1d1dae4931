"""What the conformance check of sources finds."""

import numpy as np
import pytest

from rl_datasets import Episode
from rl_datasets.testing import ListSource, check_source, toy_episodes

GIVEN = toy_episodes([3, 1, 2])


class ForgetsFirst(ListSource):
    """Begins anew wherever it is to go on."""

    def episodes(self, first=0):
        yield from self.given


class ReusesArrays(ListSource):
    """Reads every episode into the same memory."""

    def episodes(self, first=0):
        memory = np.empty((9, 3), np.float32)
        for one in self.given[first:]:
            seen = memory[: len(one) + 1]
            seen[:] = one.observations["observation",]
            observations = {**one.observations, ("observation",): seen}
            yield Episode(observations, one.columns, one.place, one.number)


class CountsTooFew(ListSource):
    """Says that there are fewer steps."""

    @property
    def steps(self):
        return 5


class HasAnUnplainOption(ListSource):
    """Its episodes depend on what JSON does not have."""

    @property
    def options(self):
        return {"sizes": (64, 64)}


def changed(index, /, **parts):
    """The given episodes, of which one differs."""
    one = GIVEN[index]
    whole = {name: getattr(one, name) for name in ("observations", "columns", "place", "number")}
    return [*GIVEN[:index], Episode(**{**whole, **parts}), *GIVEN[index + 1 :]]


BROKEN = {
    "passes over 1": lambda: ForgetsFirst(GIVEN),
    "reading twice": lambda: ReusesArrays(GIVEN),
    "steps, 5, are no less than the 6": lambda: CountsTooFew(GIVEN),
    "plain values": lambda: HasAnUnplainOption(GIVEN),
    "it has an episode": lambda: ListSource([]),
    "numbers rise": lambda: ListSource(changed(1, number=7)),
    "a place of its own": lambda: ListSource(changed(1, place=GIVEN[0].place)),
    "columns of toy, episode 2": lambda: ListSource(
        changed(2, observations={("observation",): GIVEN[2].observations["observation",]})
    ),
}


@pytest.mark.parametrize("promise", BROKEN)
def test_a_broken_promise_is_named(promise):
    with pytest.raises(AssertionError, match=f"breaks a promise of sources: .*{promise}"):
        check_source(BROKEN[promise])

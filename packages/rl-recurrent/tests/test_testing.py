"""The conformance check passes on the backends of the package and fails on broken ones."""

from __future__ import annotations

import pytest

from rl_recurrent import reference
from rl_recurrent.backends import pack, pad
from rl_recurrent.backends.static import scan
from rl_recurrent.testing import check_backend


@pytest.mark.parametrize("backend", [pack, pad, scan])
def test_backend_of_the_package_conforms(backend):
    check_backend(backend)


class Loops:
    """The plain loops, as a backend with a function for each cell."""

    def lstm_layer(self, x, weights, states, segments, settings):
        return reference.lstm_layer(x, weights, states, segments)

    def gru_layer(self, x, weights, state, segments, settings):
        return reference.gru_layer(x, weights, state, segments)


def test_backend_with_a_function_for_each_cell_conforms():
    check_backend(Loops())


class StateLost(Loops):
    """Starts every segment from zeros."""

    def gru_layer(self, x, weights, state, segments, settings):
        return reference.gru_layer(x, weights, state * 0, segments)


class Detached(Loops):
    """Lets no gradient through the input."""

    def lstm_layer(self, x, weights, states, segments, settings):
        return reference.lstm_layer(x * 0 + x.detach(), weights, states, segments)


class ShortCells(Loops):
    """Gives the last cell state of the batch alone."""

    def lstm_layer(self, x, weights, states, segments, settings):
        h, c = reference.lstm_layer(x, weights, states, segments)
        return h, c[-1:]


@pytest.mark.parametrize(
    ("broken", "promise"),
    [(StateLost, "gru: h"), (Detached, "lstm: gradient 0"), (ShortCells, "expected the shape")],
)
def test_broken_backend_fails(broken, promise):
    with pytest.raises(AssertionError, match=promise):
        check_backend(broken())

"""Generalised advantages in one pass, compiled by numba: the only file here that needs it.

Each y depends on the next one, and that latency dominates the time. So a tile
is cut into eight chains that are scanned side by side, all but the last as if nothing followed
them. Then the next y is carried into each chain, up to its first cut. Nothing is multiplied across
a cut, so that what is not finite stays in front of its own.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: ANN001, ANN201, PLR0913 - a loop takes its arrays one by one, of either dtype

import numpy as np
from numba import njit

CHAIN = 500  # steps; no power of two, or eight places of the cache would be one
TILE = 8 * CHAIN


@njit(nogil=True, cache=True)
def gae_rows(reward, value, ahead, terminated, cut, gamma, decay, advantage, target):
    """Compute advantages and targets of flat rows; see `rl_value.gae`."""
    kind = reward.dtype.type
    factor, last, tile = kind(decay), kind(0), np.empty(TILE, reward.dtype)
    powers = np.empty(CHAIN, reward.dtype)
    for back in range(CHAIN):
        powers[back] = decay ** (CHAIN - back)
    for stop in range(len(reward), 0, -TILE):
        start = max(0, stop - TILE)
        y, flow, now = tile[: stop - start], cut[start:stop], value[start:stop]
        fill(reward[start:stop], now, ahead[start:stop], terminated[start:stop], kind(gamma), y)
        if len(y) == TILE:
            scan_chains(y, flow, factor, last, powers)
        else:
            scan_chain(y, flow, factor, last)
        last = y[0]
        advantages, targets = advantage[start:stop], target[start:stop]
        for row in range(len(y)):
            advantages[row] = y[row]
            targets[row] = y[row] + now[row]


@njit(nogil=True, cache=True)
def fill(reward, value, ahead, terminated, gamma, delta):
    """Write what each row alone adds; arguments as of `gae_rows`, ``[P]`` each."""
    for row in range(len(delta)):
        following = delta.dtype.type(0) if terminated[row] else gamma * ahead[row]
        delta[row] = reward[row] + following - value[row]


@njit(nogil=True, cache=True)
def scan_chain(y, cut, factor, last):
    """Scan rows one after the other; `last` is the y after them."""
    for back in range(len(y)):
        row = np.uintp(len(y) - 1 - back)  # unsigned: numba tests no index for being negative
        last = y[row] if cut[row] else y[row] + factor * last
        y[row] = last


@njit(nogil=True, cache=True)
def scan_chains(y, cut, factor, last, powers):
    """The same for a whole tile, chains side by side; the powers are those of the factor."""
    # The chains are written out: eight y's in an array would go through memory at every step.
    chain = np.uintp(CHAIN)
    none = y.dtype.type(0)
    y0 = y1 = y2 = y3 = y4 = y5 = y6 = none
    y7 = last
    for back in range(CHAIN):
        row = np.uintp(CHAIN - 1 - back)
        y0 = y[row] + (none if cut[row] else factor * y0)
        y[row] = y0
        row += chain
        y1 = y[row] + (none if cut[row] else factor * y1)
        y[row] = y1
        row += chain
        y2 = y[row] + (none if cut[row] else factor * y2)
        y[row] = y2
        row += chain
        y3 = y[row] + (none if cut[row] else factor * y3)
        y[row] = y3
        row += chain
        y4 = y[row] + (none if cut[row] else factor * y4)
        y[row] = y4
        row += chain
        y5 = y[row] + (none if cut[row] else factor * y5)
        y[row] = y5
        row += chain
        y6 = y[row] + (none if cut[row] else factor * y6)
        y[row] = y6
        row += chain
        y7 = y[row] + (none if cut[row] else factor * y7)
        y[row] = y7
    # from the last chain but one: the y after it is final, and reaches back to its last cut
    for end in range(TILE - CHAIN, 0, -CHAIN):
        first, cuts = end - CHAIN, 0
        for place in range(first, end):
            cuts += cut[place]
        if cuts:  # the y that is carried in stops at the last cut of the chain
            first = end
            while not cut[first - 1]:
                first -= 1
        carried, reached, powers_of = y[end], y[first:end], powers[CHAIN - (end - first) :]
        for place in range(len(reached)):
            reached[place] += carried * powers_of[place]

"""The links inside one batch in one pass, compiled by numba: the only file here that needs it.

`BatchLinker` has the same in numpy.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
# mypy: disable-error-code="untyped-decorator"
# ruff: noqa: ANN001, ANN201, PLR0913 - a loop takes its arrays one by one

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def link_rows(back, apart, start, new, former, first_slot, addresses, found, counts):
    """Fill in what each row of a batch names, and which rows are to be looked at further."""
    # back, former and addresses int32 [n]; apart bool [n], rows whose observation is not the next
    # one of the row that they continue; start the position of the first row; new whether former is
    # not to be read; found int64 [3, n]: rows that name none, rows in place of one with a slot, and
    # rows that continue one before the batch; counts int64 [4]: how many of each, and the distance
    # of all links, which is 0 without any and -1 if they differ.
    count, slots, owned, heads, near = len(back), 0, 0, 0, 0
    addresses[count - 1] = 0
    # most rows continue the one just before: without branches, so that it becomes moves of vectors
    for row in range(1, count):
        continues = (back[row] == 1) & (not apart[row])
        addresses[row - 1] = np.int32(start + row + 1) if continues else np.int32(0)
        near += continues
    distance = 1 if near else 0
    for row in range(count):
        away = back[row]
        if away > row:
            found[2, heads] = row
            heads += 1
        elif away > 1 and not apart[row]:
            addresses[row - away] = start + row + 1
            distance = away if distance == 0 or distance == away else -1
    for row in range(count):
        if addresses[row] == 0:
            found[0, slots] = row
            slots += 1
        if not new and former[row] >= first_slot:
            found[1, owned] = row
            owned += 1
    counts[0], counts[1], counts[2], counts[3] = slots, owned, heads, distance


@njit(nogil=True, cache=True)
def mark_apart(back, root, following, apart):
    """Mark rows whose observation differs from the next one of the row that they continue."""
    # root and following unsigned integers [n, words]; apart bool [n]
    words = root.shape[1]
    for row in range(len(back)):
        away = back[row]
        if away <= 0 or away > row:
            continue
        differ = root.dtype.type(0)
        for word in range(words):
            differ |= root[row, word] ^ following[row - away, word]
        apart[row] |= differ != 0

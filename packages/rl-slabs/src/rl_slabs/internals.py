"""Names that the other packages of this family import, in addition to the exports.

Made for siblings, which ask for a range of versions: a name changes with the minor version only.
"""

from rl_slabs.arguments import positive
from rl_slabs.dtypes import carrier, dtype_named, name_of
from rl_slabs.lanes.claim_lock import claim_lock
from rl_slabs.lanes.lane import FLOOR, LANE_MASK, LANE_SHIFT, PUBLISHED, RESERVED, SIDE, fence
from rl_slabs.lanes.window import as_array, as_tensor
from rl_slabs.memory.memory import Memory
from rl_slabs.regular_file import open_regular
from rl_slabs.rows.blocks import aligned_bytes
from rl_slabs.rows.match import as_cells, bits_of, match_fields, match_leaves
from rl_slabs.rows.rows import PARALLEL_ITEMS, take_known_rows
from rl_slabs.rows.selection import RowIndex, require_inside, select
from rl_slabs.rows.tensordict_leaves import TensordictReader, ValidatedLeaves
from rl_slabs.rows.unpack import build_unpack
from rl_slabs.schema import PACKED_LEAF_BYTES, Field
from rl_tensordict import Leaves, leaves_of

__all__ = [
    "FLOOR",
    "LANE_MASK",
    "LANE_SHIFT",
    "PACKED_LEAF_BYTES",
    "PARALLEL_ITEMS",
    "PUBLISHED",
    "RESERVED",
    "SIDE",
    "Field",
    "Leaves",
    "Memory",
    "RowIndex",
    "TensordictReader",
    "ValidatedLeaves",
    "aligned_bytes",
    "as_array",
    "as_cells",
    "as_tensor",
    "bits_of",
    "build_unpack",
    "carrier",
    "claim_lock",
    "dtype_named",
    "fence",
    "leaves_of",
    "match_fields",
    "match_leaves",
    "name_of",
    "open_regular",
    "positive",
    "require_inside",
    "select",
    "take_known_rows",
]

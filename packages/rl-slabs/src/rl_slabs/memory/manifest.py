"""The header of a slab's memory: schema, capacity, lanes and byte offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from rl_slabs.arguments import positive
from rl_slabs.memory.head import Head, padded, require_size
from rl_slabs.rows.rows import Rows, aligned
from rl_slabs.schema import RowSchema
from rl_tensordict.arguments import as_integer

WORDS_PER_LANE = 8
"""64-bit words in the header of one lane: a cache line."""

_HEAD = Head(b"RL-SLAB\n", 1, "is no slab", "slab format {}")


@dataclass(frozen=True)
class Manifest:
    """The head of a slab's memory: `[head and JSON | lane words | packed rows | own arrays]`."""

    # The head is padded to a page, the rows begin at a cache line. Spare rows follow the rows,
    # and one more then precedes them: [... | one row | packed rows | spare rows].

    schema: RowSchema  # fields of a row
    capacity: int  # number of rows
    lanes: int = 1  # lanes that share the rows evenly
    about: str = ""  # free text of the creator, for processes that open the slab
    spare: int = 0  # extra rows after those of the lanes, allocated on demand

    def __post_init__(self) -> None:
        if not isinstance(self.schema, RowSchema):
            raise TypeError(
                f"expected a RowSchema, got {type(self.schema).__name__}. "
                "Use RowSchema.from_tensordict(batch) or RowSchema.from_spec(spec)."
            )
        for name in ("capacity", "lanes"):
            # numpy's integers would not go into the JSON
            object.__setattr__(self, name, positive(getattr(self, name), name))
        spare = as_integer(self.spare)
        if spare is None or spare < 0:
            raise ValueError(f"spare must be an integer of 0 or more, got {self.spare!r}.")
        object.__setattr__(self, "spare", spare)
        if not isinstance(self.about, str):
            raise TypeError(f"about must be a text, got {type(self.about).__name__}.")
        if self.capacity % self.lanes:
            below = self.capacity // self.lanes * self.lanes
            raise ValueError(
                f"capacity must be a multiple of lanes: got {self.capacity} and {self.lanes}. "
                f"Use {below or self.lanes} or {below + self.lanes}."
            )
        if self.spare and self.schema.large:
            raise ValueError(
                f"spare rows are packed ones: {[field.key for field in self.schema.large]} have "
                "arrays of their own. Use packed_bytes= of the schema, or spare=0."
            )

    @property
    def words_offset(self) -> int:
        """Bytes before the words of the lanes."""
        return padded(self.to_bytes())

    @property
    def rows_offset(self) -> int:
        """Bytes before the rows."""
        ahead = aligned(self.schema.row_bytes) if self.spare else 0
        return self.words_offset + self.lanes * WORDS_PER_LANE * 8 + ahead

    @property
    def taken(self) -> int:
        """Bytes up to the spare rows, which are there from the beginning."""
        return self.rows_offset + Rows.bytes_for(self.schema, self.capacity)

    @property
    def promised(self) -> int:
        """Bytes of the spare rows."""
        return self.spare * self.schema.row_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the whole memory."""
        return self.taken + self.promised

    def to_bytes(self) -> bytes:
        """The header's bytes, unpadded."""
        plain: dict[str, object] = {
            "capacity": self.capacity,
            "lanes": self.lanes,
            "schema": self.schema.to_dict(),
        }
        if self.about:
            plain["about"] = self.about
        if self.spare:
            plain["spare"] = self.spare
        return _HEAD.pack(plain)

    @classmethod
    def read(cls, descriptor: int, name: str) -> Self:
        """The manifest of an open file, checked against its size."""
        manifest = cls._from_plain(_HEAD.read(descriptor, name), name)
        require_size(descriptor, name, manifest.nbytes, f" for {manifest.capacity} rows")
        return manifest

    @classmethod
    def _from_plain(cls, plain: dict[str, Any], name: str) -> Self:
        about, spare = plain.get("about", ""), plain.get("spare", 0)
        try:
            schema = RowSchema.from_dict(plain["schema"])
            return cls(schema, plain["capacity"], plain["lanes"], about, spare)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the head of {name} is none of a slab: {error!r}.") from error

"""The header of a slab's memory: schema, capacity, lanes and byte offsets."""

from __future__ import annotations

import json
import os
import struct
import sys
import zlib
from dataclasses import dataclass
from typing import Self

from rl_slabs.regular_file import HEAD_LIMIT, parsed_head
from rl_slabs.rows.rows import Rows, aligned, positive
from rl_slabs.schema import RowSchema

FORMAT_VERSION = 1
"""Raised whenever the layout of the file changes."""

WORDS_PER_LANE = 8
"""64-bit words in the header of one lane: a cache line."""

_MAGIC = b"RL-SLAB\n"
_PAGE = 4096
_HEAD = struct.Struct("<8sIIQ")  # magic, version, crc32 of the JSON, bytes of the JSON


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
        if isinstance(self.spare, bool) or not isinstance(self.spare, int) or self.spare < 0:
            raise ValueError(f"spare must be an integer of 0 or more, got {self.spare!r}.")
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
        return -(-(_HEAD.size + len(self._json())) // _PAGE) * _PAGE

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
        text = self._json()
        return _HEAD.pack(_MAGIC, FORMAT_VERSION, zlib.crc32(text), len(text)) + text

    @classmethod
    def read(cls, descriptor: int, name: str) -> Self:
        """The manifest of an open file, checked against its size."""
        start = os.pread(descriptor, _HEAD.size, 0)
        if start[: len(_MAGIC)] != _MAGIC or len(start) < _HEAD.size:
            raise ValueError(
                f"{name} is no slab: expected it to begin with {_MAGIC!r}, got {start[:8]!r}. "
                "Its creation was cut off, or it is another file."
            )
        _, version, checksum, length = _HEAD.unpack(start)
        if version != FORMAT_VERSION:
            raise ValueError(
                f"{name} has slab format {version}, this version reads {FORMAT_VERSION}. "
                "Read it with the rl-slabs that wrote it."
            )
        text = os.pread(descriptor, min(length, HEAD_LIMIT), _HEAD.size)
        if len(text) != length or zlib.crc32(text) != checksum:
            raise ValueError(f"the head of {name} was altered: its checksum differs. Restore it.")
        manifest = cls._from_json(parsed_head(text, name), name)
        size = os.fstat(descriptor).st_size
        if size != manifest.nbytes:
            raise ValueError(
                f"{name} was cut short or appended to: expected {manifest.nbytes} bytes for "
                f"{manifest.capacity} rows, got {size}. Restore it from a copy."
            )
        return manifest

    @classmethod
    def _from_json(cls, plain: dict[str, object], name: str) -> Self:
        if plain.get("byteorder") != sys.byteorder:
            raise ValueError(
                f"{name} was written {plain.get('byteorder')}-endian, this machine is "
                f"{sys.byteorder}-endian. Read it on such a machine."
            )
        about, spare = plain.get("about", ""), plain.get("spare", 0)
        try:
            schema = RowSchema.from_dict(plain["schema"])  # type: ignore[arg-type]
            return cls(schema, plain["capacity"], plain["lanes"], about, spare)  # type: ignore[arg-type]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the head of {name} is none of a slab: {error!r}.") from error

    def _json(self) -> bytes:
        plain: dict[str, object] = {
            "byteorder": sys.byteorder,
            "capacity": self.capacity,
            "lanes": self.lanes,
            "schema": self.schema.to_dict(),
        }
        if self.about:
            plain["about"] = self.about
        if self.spare:
            plain["spare"] = self.spare
        return json.dumps(plain, separators=(",", ":")).encode()

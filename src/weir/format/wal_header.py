"""The first bytes of a WAL entry: who wrote it, without its rows.

For callers with one question about many entries (collection: which is the first of its epoch, which
carries a token?) that would otherwise read a whole log. Nothing here is used to serve rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import unpack_from
from typing import Final

import pyarrow as pa

from weir.types import Epoch

HEADER_BYTES: Final = 8 << 10
"""Enough for the schema and first batch header of a few dozen columns; otherwise the whole entry is
read."""

_EPOCH: Final = b"writer_epoch"
_TOKENS: Final = b"weir_tokens"
_CONTINUATION: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """What the first bytes of an entry contain."""

    epoch: Epoch
    may_hold_tokens: bool
    """False only when the entry certainly carries no exactly-once token."""


def read_header(data: bytes) -> EntryHeader | None:
    """The header in the first bytes of an entry; None if they are too few or not an entry."""
    try:
        metadata = pa.ipc.read_schema(pa.py_buffer(data)).metadata or {}
    except (pa.ArrowException, ValueError, OSError):
        return None
    raw = metadata.get(_EPOCH, b"")
    if not raw.isdigit() or len(raw) > 20:
        return None
    end = _second_message_end(data)
    known = end is not None and end <= len(data)
    return EntryHeader(Epoch(int(raw)), not known or _TOKENS in data[:end])


def _second_message_end(data: bytes) -> int | None:
    """Where the header of the message after the schema ends; None if `data` does not show it."""
    at = 0
    for number in range(2):
        if at + 8 > len(data):
            return None
        mark, length = map(int, unpack_from("<II", data, at))
        if mark != _CONTINUATION:
            return None
        at += 8 + length
        # The schema message has no body, so the next one follows at once.
        if length == 0 or number == 1:
            return at
    return at

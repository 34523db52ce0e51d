"""The first bytes of a WAL entry: who wrote it, without its rows.

For callers with one question about many entries (which is the first of its epoch, which carries a
token?) that would otherwise read a whole log. Nothing here is used to serve rows. The bytes of an
entry may end before the answer; that is an answer of its own, and never a no.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

import pyarrow as pa

from weir.format.ipc_guard import Kind, Truncated, messages
from weir.types import Epoch

# Stored. Never change a value; add one. `weir.format.wal_entry` writes them.
EPOCH_KEY: Final = b"writer_epoch"
FENCE_KEY: Final = b"fence_sentinel"
TOKENS_KEY: Final = b"weir_tokens"
STAGED_KEY: Final = b"weir_staged"


class Carries(Enum):
    """Whether an entry carries something beside its rows, as far as the bytes read show."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """What the first bytes of an entry contain."""

    epoch: Epoch
    is_fence: bool
    tokens: Carries
    """Exactly-once tokens."""
    staged: Carries
    """The mark of a large batch. YES may be a token's text; NO is certain."""


def read_header(data: bytes) -> EntryHeader:
    """The header in the first bytes of an entry.

    Raises `Truncated` if they end before the epoch, and `ValueError` if this is not an entry.
    """
    stream = messages(data)
    schema = next(stream)
    if schema.kind != Kind.SCHEMA:
        raise ValueError("it does not begin with a schema")
    try:
        metadata = pa.ipc.read_schema(pa.py_buffer(data)).metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise ValueError(str(error)) from error
    raw = metadata.get(EPOCH_KEY, b"")
    if not raw.isdigit() or len(raw) > 20:
        raise ValueError("its schema metadata has no writer_epoch")
    epoch, is_fence = Epoch(int(raw)), metadata.get(FENCE_KEY) == b"true"
    try:
        # Both are metadata of the first batch of rows; dictionaries of its columns come before.
        first = bytes(next(m for m in stream if m.kind in (Kind.RECORD_BATCH, Kind.END)).metadata)
    except Truncated:
        return EntryHeader(epoch, is_fence, Carries.UNKNOWN, Carries.UNKNOWN)
    tokens, staged = (
        Carries.YES if key in first else Carries.NO for key in (TOKENS_KEY, STAGED_KEY)
    )
    return EntryHeader(epoch, is_fence, tokens, staged)

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
TOKENS_KEY: Final = b"weir_tokens"


class Carries(Enum):
    """Whether an entry carries exactly-once tokens, as far as the bytes read show."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """What the first bytes of an entry contain."""

    epoch: Epoch
    tokens: Carries


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
    try:
        # Tokens are metadata of the first batch of rows; dictionaries of its columns come before.
        first = next(m for m in stream if m.kind in (Kind.RECORD_BATCH, Kind.END))
    except Truncated:
        return EntryHeader(Epoch(int(raw)), Carries.UNKNOWN)
    found = TOKENS_KEY in bytes(first.metadata)
    return EntryHeader(Epoch(int(raw)), Carries.YES if found else Carries.NO)

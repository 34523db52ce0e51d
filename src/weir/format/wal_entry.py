"""Bytes of one WAL entry: an Arrow IPC stream whose schema metadata says who wrote it.

The schema metadata is the base table's, exactly, plus `writer_epoch` and `generation`: pylance
refuses a shard with any other key there. What weir adds (an id by which a writer recognizes its own
entry after a lost answer, F-9; exactly-once tokens, P-2; how full its generation is, F-15; whether
its rows wait for a manifest to publish them) is therefore in the custom metadata of the first
record batch, which pylance ignores.

Bytes read from a store are not trusted: an entry is checked completely before any of it is used.
Anything the decoder would refuse is refused before it is written (F-15): size and tokens here,
values and nulls in `weir.log.intake`, nesting in `weir.format.schema`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from weir.env import Limits
from weir.errors import CorruptEntry, InvalidInput, SchemaMismatch
from weir.format.ipc_guard import is_compressed
from weir.format.schema import TOMBSTONE, TOMBSTONE_FIELD, TableSchema
from weir.format.wal_header import EPOCH_KEY, FENCE_KEY, STAGED_KEY, TOKENS_KEY
from weir.types import Epoch, Generation, Position

# Stored. Never change a value; add one.
_GENERATION: Final = b"generation"
RESERVED_METADATA: Final = frozenset({EPOCH_KEY, _GENERATION, FENCE_KEY})
"""Keys of schema metadata that belong to entries; pylance cannot read a table that has them too."""
_ENTRY_ID: Final = b"weir_entry_id"
_FILLED: Final = b"weir_filled"
_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"

ENTRY_BYTES_MAX: Final = Limits().entry_bytes
_HEADERS_BYTES: Final = 1024
"""Room for the rest of an entry, besides its schema and batches: id, tokens, end marker."""
_DAMAGE = (pa.ArrowException, ValueError, TypeError, OSError, LookupError, RecursionError)
"""What pyarrow raises on damaged bytes."""
_SMALL_BATCH_ROWS = 1000
# Made once: without it pyarrow reads its defaults from the environment for every stream, 5 us.
_OPTIONS: Final = pa.ipc.IpcWriteOptions()
_COMBINED_ROWS = 65536
_U64_MAX = 2**64 - 1


class Fill(NamedTuple):
    """What a generation holds: rows, record batches, and bytes in memory."""

    rows: int = 0
    batches: int = 0
    nbytes: int = 0

    def __add__(self, more: Fill) -> Fill:  # type: ignore[override]
        return Fill(self.rows + more.rows, self.batches + more.batches, self.nbytes + more.nbytes)


@dataclass(frozen=True, slots=True)
class WalEntry:
    """One decoded entry of the log."""

    position: Position
    epoch: Epoch
    generation: Generation | None
    """The MemTable the rows belong to; None on fences and on entries of lax foreign writers."""
    is_fence: bool
    batches: tuple[pa.RecordBatch, ...]
    """The rows, in order; `_tombstone` is always there, last and without nulls."""
    entry_id: str | None
    """weir's id of the entry; None if another program wrote it."""
    tokens: tuple[tuple[str, int], ...]
    """Exactly-once tokens: (application, version) pairs that became durable with the rows."""
    size: int
    """Bytes in memory, which are those of the stored object."""
    filled: Fill | None = None
    """What its generation holds, itself included, by weir's count; None if another program wrote
    it."""
    is_staged: bool = False
    """True: its rows count only once a manifest publishes them and moves R past the entry."""

    @property
    def num_rows(self) -> int:
        """Rows, tombstones included."""
        return sum(batch.num_rows for batch in self.batches)


class EntryEncoder:
    """Encodes entries of one table schema; remembers the stream schema of the last generation.

    Safe to call from several threads.
    """

    def __init__(self, schema: TableSchema, *, max_bytes: int = ENTRY_BYTES_MAX) -> None:
        if FENCE_KEY in (schema.wal.metadata or {}):
            raise InvalidInput(
                f"the table's schema metadata has a key {FENCE_KEY.decode()!r}, which marks fences"
                " in the log; remove it"
            )
        self._wal = schema.wal
        self._max_bytes = max_bytes
        self._stream: tuple[int, int, pa.Schema] = (-1, -1, schema.wal)

    def encode(
        self,
        batches: Sequence[pa.RecordBatch],
        *,
        epoch: Epoch,
        generation: Generation,
        entry_id: str,
        tokens: Sequence[tuple[str, int]] = (),
        filled: Fill | None = None,
        is_staged: bool = False,
        batches_max: int = _COMBINED_ROWS,
    ) -> memoryview:
        """The entry's bytes. `batches` are in `TableSchema.wal` shape; empty ones are left out.

        Many small batches are merged into few: a reader pays per batch. No more than `batches_max`
        are written: a native MemTable holds no more, and an entry goes into one MemTable (F-15).
        """
        kept = [batch for batch in batches if batch.num_rows]
        if not kept:
            raise InvalidInput("a WAL entry needs at least one row")
        metadata = {_ENTRY_ID: entry_id}
        if tokens:
            for app, version in tokens:
                check_token(app, version)
            metadata[TOKENS_KEY] = json.dumps(list(tokens), separators=(",", ":"))
        if filled is not None:
            metadata[_FILLED] = f"{filled.rows},{filled.batches},{filled.nbytes}"
        if is_staged:
            metadata[STAGED_KEY] = "true"
        sink = pa.BufferOutputStream()
        try:
            if len(kept) > 1:
                kept = _at_most(batches_max, _combine(kept))
            writer = pa.ipc.new_stream(
                sink, self._stream_schema(epoch, generation), options=_OPTIONS
            )
            writer.write_batch(kept[0], custom_metadata=metadata)
            for batch in kept[1:]:
                writer.write_batch(batch)
            writer.close()
        except pa.ArrowInvalid as error:
            raise SchemaMismatch(f"rows do not match the schema of the log: {error}") from error
        entry = _view(sink)
        if len(entry) > self._max_bytes:
            raise _too_large(len(entry), self._max_bytes)
        return entry

    def _stream_schema(self, epoch: Epoch, generation: Generation) -> pa.Schema:
        stream = self._stream
        if stream[0] == epoch and stream[1] == generation:
            return stream[2]
        metadata = dict(self._wal.metadata or {})
        metadata[EPOCH_KEY] = b"%d" % epoch
        metadata[_GENERATION] = b"%d" % generation
        schema = self._wal.with_metadata(metadata)
        self._stream = (epoch, generation, schema)
        return schema


def require_fit(
    batches: Sequence[pa.RecordBatch], schema: TableSchema, *, nbytes: int, max_bytes: int
) -> None:
    """Raise `InvalidInput` unless the rows fit one entry; `nbytes` is their size in memory.

    Called before rows are accepted, so that the encoder never refuses an entry shared by several
    puts.
    """
    if 2 * nbytes + _HEADERS_BYTES < max_bytes // 2:
        return  # padding and headers of a batch take less than its rows
    size = schema.wal.serialize().size + _HEADERS_BYTES
    for batch in batches:
        size += pa.ipc.get_record_batch_size(batch)
        size += sum(c.nbytes for c in batch.columns if pa.types.is_dictionary(c.type))
    if size > max_bytes:  # guard: F-15 test_written_is_readable
        raise _too_large(size, max_bytes)


def _too_large(size: int, max_bytes: int) -> InvalidInput:
    return InvalidInput(
        f"these rows take {size} bytes in the log, more than the {max_bytes} allowed for one put."
        " Nothing was written; split them into several puts"
    )


def encode_fence(epoch: Epoch, entry_id: str) -> memoryview:
    """A fence: an entry without columns or rows that takes a position for `epoch` (F-1)."""
    metadata = {EPOCH_KEY: b"%d" % epoch, FENCE_KEY: b"true", _ENTRY_ID: entry_id}
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, pa.schema([], metadata=metadata)).close()
    return _view(sink)


def _view(sink: pa.BufferOutputStream) -> memoryview:
    # Arrow's own view has signed bytes; those above 127 never compare equal to `bytes`.
    return memoryview(sink.getvalue()).cast("B").toreadonly()


def _combine(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if sum(batch.num_rows for batch in batches) >= _SMALL_BATCH_ROWS * len(batches):
        return batches
    combined: list[pa.RecordBatch] = []
    group: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if group and rows + batch.num_rows > _COMBINED_ROWS:
            combined.append(pa.concat_batches(group))
            group, rows = [], 0
        group.append(batch)
        rows += batch.num_rows
    combined.append(pa.concat_batches(group))
    return combined


def _at_most(most: int, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    share = -(-len(batches) // most)
    if share <= 1:
        return batches
    return [pa.concat_batches(batches[i : i + share]) for i in range(0, len(batches), share)]


def decode_entry(
    data: bytes | memoryview, *, position: Position, path: str, max_bytes: int = ENTRY_BYTES_MAX
) -> WalEntry:
    """The entry in `data`, completely checked, or `CorruptEntry` naming `path`.

    The batches refer to `data` and keep it alive. Bytes after the end marker are accepted, as
    pylance does; a missing end marker is not, since every writer writes one.
    """
    size = len(data)
    if size > max_bytes:
        raise _corrupt(path, position, f"it has {size} bytes, more than the limit of {max_bytes}")
    try:
        # A few kB may claim to expand to a gigabyte, and Arrow would take the memory.
        if is_compressed(data):  # guard: G-13 test_wal_entry
            raise _corrupt(path, position, "it is compressed, and no known program does that")
        return _decode(data, position=position)
    except CorruptEntry:
        raise
    except MemoryError as error:
        raise _corrupt(path, position, f"decoding it needs too much memory: {error}") from error
    except _DAMAGE as error:
        # pyarrow maps damage to several classes, some of them plain Python ones (OSError,
        # NotImplementedError through ArrowException, UnicodeDecodeError through ValueError).
        raise _corrupt(path, position, str(error)) from error


def _decode(data: bytes | memoryview, *, position: Position) -> WalEntry:
    size = len(data)
    source = pa.BufferReader(data)
    reader = pa.ipc.open_stream(source)
    metadata = dict(reader.schema.metadata or {})
    epoch = _decimal(metadata.pop(EPOCH_KEY, None), "writer_epoch")
    raw_generation = metadata.pop(_GENERATION, None)
    generation = None if raw_generation is None else _decimal(raw_generation, "generation")
    is_fence = metadata.get(FENCE_KEY) == b"true"
    names = reader.schema.names
    if len(set(names)) != len(names):
        raise ValueError("a column name occurs twice")
    for dtype in reader.schema.types:
        _check_text(dtype)
    batches: list[pa.RecordBatch] = []
    private: Mapping[bytes, bytes] = (
        {_ENTRY_ID: metadata[_ENTRY_ID]} if (is_fence and _ENTRY_ID in metadata) else {}
    )
    rows = 0
    while True:
        try:
            batch, custom = reader.read_next_batch_with_custom_metadata()
        except StopIteration:
            # Every writer ends a stream with this. Without it a stream truncated between two
            # batches, or right after the schema, would read as an entry with fewer rows.
            end = source.tell()
            if bytes(data[end - len(_END) : end]) != _END:
                raise ValueError("it is truncated: its end marker is missing") from None
            break
        rows += batch.num_rows
        if batch.num_rows == 0:
            raise ValueError(f"batch {len(batches)} is empty")
        if rows > 8 * size:
            raise ValueError(f"it claims {rows} rows, more than its bytes can hold")
        batch.validate(full=True)
        if not batches and custom is not None:
            private = dict(custom)
        batches.append(_normal(batch, metadata))
    if is_fence and batches:
        raise ValueError("it is a fence but holds rows")
    entry_id, tokens = _private(private)
    return WalEntry(
        position=position,
        epoch=Epoch(epoch),
        generation=None if generation is None else Generation(generation),
        is_fence=is_fence,
        batches=tuple(batches),
        entry_id=entry_id,
        tokens=tokens,
        size=size,
        filled=_fill(private.get(_FILLED)),
        is_staged=STAGED_KEY in private,
    )


def _normal(batch: pa.RecordBatch, metadata: Mapping[bytes, bytes]) -> pa.RecordBatch:
    """The batch with only the base metadata and `_tombstone` last, as weir itself writes it."""
    schema = batch.schema
    last = len(schema) - 1
    index = schema.get_field_index(TOMBSTONE)
    if index == last and schema.field(last).equals(TOMBSTONE_FIELD):
        if batch.column(last).null_count:
            raise ValueError(f"{TOMBSTONE} holds nulls")
        return batch.replace_schema_metadata(metadata or None)
    columns, fields = list(batch.columns), list(schema)
    if index < 0:
        marks = pa.repeat(pa.scalar(value=False), batch.num_rows)
    else:
        marks = columns.pop(index)
        fields.pop(index)
        if marks.type != pa.bool_() or marks.null_count:
            raise ValueError(f"{TOMBSTONE} is {marks.type}, but must be bool without nulls")
    return pa.RecordBatch.from_arrays(
        [*columns, marks], schema=pa.schema([*fields, TOMBSTONE_FIELD], metadata=metadata or None)
    )


def _check_text(dtype: pa.DataType) -> None:
    """Raise `UnicodeDecodeError` for a bad name inside a type, which Arrow does not check."""
    if pa.types.is_timestamp(dtype):
        _ = dtype.tz
    for i in range(dtype.num_fields):
        child = dtype.field(i)
        _ = child.name
        _check_text(child.type)


def _decimal(raw: bytes | None, name: str) -> int:
    if raw is None:
        raise ValueError(f"its schema metadata has no {name}")
    if not raw.isdigit() or len(raw) > 20 or int(raw) > _U64_MAX:
        raise ValueError(f"its {name} {raw[:40]!r} is not a 64-bit number")
    return int(raw)


def _fill(raw: bytes | None) -> Fill | None:
    if raw is None:
        return None
    counts = [_decimal(part, "weir_filled") for part in raw.split(b",")]
    if len(counts) != 3:
        raise ValueError("its weir_filled is not three numbers")
    return Fill(*counts)


def _private(metadata: Mapping[bytes, bytes]) -> tuple[str | None, tuple[tuple[str, int], ...]]:
    raw_id = metadata.get(_ENTRY_ID)
    raw_tokens = metadata.get(TOKENS_KEY)
    tokens: list[tuple[str, int]] = []
    if raw_tokens is not None:
        value: Any = json.loads(raw_tokens)
        if not isinstance(value, list):
            raise ValueError("its tokens are not a list")
        for item in value:
            match item:
                case [str(app), int(version)] if type(version) is int:
                    tokens.append((app, version))
                case _:
                    raise ValueError("its tokens are not (application, version) pairs")
    return None if raw_id is None else raw_id.decode("utf-8"), tuple(tokens)


LARGEST_VERSION: Final = (1 << 64) - 1
"""The largest number of a batch: it is recorded by a mark, whose name has room for 64 bits."""


def check_token(app: object, version: object) -> None:
    """Raise `InvalidInput` for an exactly-once token that could not be read back (F-15)."""
    if (
        not isinstance(app, str)
        or type(version) is not int
        or not 0 <= version <= LARGEST_VERSION  # guard: F-15 test_put_once_own_rows
        or (not app.isascii() and app != app.encode(errors="replace").decode())
    ):
        raise InvalidInput(
            "an exactly-once token is a name and a whole number from 0 to 2**64 - 1, got"
            f" {app!r} and {version!r}"
        )


def _corrupt(path: str, position: Position, reason: str) -> CorruptEntry:
    return CorruptEntry(
        f"{path} is not a usable WAL entry at position {position}: {reason}. Restore the object"
        " from a copy of the table, or roll back to a checkpoint made before it"
    )

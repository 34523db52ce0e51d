"""The messages of an Arrow IPC stream, and whether one of them is compressed.

Plain bodies are used in place. Compressed buffers state their expanded length beside the bytes, and
the Arrow reader allocates that much, whatever it is; no program compresses the log.
The headers are flatbuffers. The five lookups needed here are done by offset, and messages are found
the way the Arrow reader finds them. Its own message reader would take twice the time (10 us of an
entry's 40, for every entry of a tail).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

_U16 = Struct("<H")
_I32 = Struct("<i")
_U32 = Struct("<I")
_I64 = Struct("<q")


class Kind(IntEnum):
    """Kinds of messages: numbers of format/Message.fbs. Stored. Never change a value."""

    END = -1
    """The end marker of a stream; not in that file."""
    NONE = 0
    SCHEMA = 1
    DICTIONARY_BATCH = 2
    RECORD_BATCH = 3


_BATCHES: Final = (Kind.DICTIONARY_BATCH, Kind.RECORD_BATCH)
_CONTINUATION: Final = 0xFFFFFFFF
# Fields of tables in format/Message.fbs. Stored. Never change a value.
_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER, _MESSAGE_BODY_LENGTH = 1, 2, 3
_DICTIONARY_DATA = 1
_BATCH_COMPRESSION = 3


class Truncated(ValueError):
    """The bytes end before the message does."""


class Message(NamedTuple):
    """One message of a stream."""

    kind: int
    """One of `Kind`, or a number that later versions of Arrow added."""
    metadata: memoryview
    body: memoryview
    """Shorter than stated where the bytes end."""


def messages(data: bytes | memoryview) -> Iterator[Message]:
    """The messages from the first on, through the end marker.

    Raises `Truncated` where the bytes end before a message or the marker, and `ValueError` for a
    header that cannot be read.
    """
    stream = memoryview(data)
    at = 0
    try:
        while at + 8 <= len(stream):
            start = at + 8 if _u32(stream, at) == _CONTINUATION else at + 4  # older streams
            length = _i32(stream, start - 4)
            end = start + length
            if length > 0 and end > len(stream):
                break
            metadata = stream[_at(stream, start, length) : end]
            if length == 0:
                yield Message(Kind.END, metadata, metadata)
                return
            body = _body_length(metadata)
            yield Message(_kind(metadata), metadata, stream[end : end + body])
            at = end + body
    except IndexError as error:
        raise ValueError(f"damaged message header: {error}") from error
    raise Truncated("it is truncated: its end marker is missing")


def is_compressed(data: bytes | memoryview) -> bool:
    """True when a body of the stream is; `ValueError` for headers that cannot be read."""
    return any(map(_is_compressed, messages(data)))


def _body_length(metadata: memoryview) -> int:
    at = _field(metadata, _u32(metadata, 0), _MESSAGE_BODY_LENGTH)
    length = int(_I64.unpack_from(metadata, _at(metadata, at, 8))[0]) if at else 0
    if length < 0:
        raise ValueError("a body of negative length")
    return length


def _kind(metadata: memoryview) -> int:
    at = _field(metadata, _u32(metadata, 0), _MESSAGE_HEADER_TYPE)
    return metadata[at] & 0xFF if at else int(Kind.NONE)


def _is_compressed(message: Message) -> bool:
    if message.kind not in _BATCHES:
        return False
    metadata = message.metadata
    batch = _target(metadata, _u32(metadata, 0), _MESSAGE_HEADER)
    if message.kind == Kind.DICTIONARY_BATCH and batch is not None:
        batch = _target(metadata, batch, _DICTIONARY_DATA)
    return batch is not None and _field(metadata, batch, _BATCH_COMPRESSION) > 0


def _field(buf: memoryview, table: int, index: int) -> int:
    """The offset of field `index` in a flatbuffer table; 0 if the field is absent."""
    vtable = table - _i32(buf, table)
    slot = 4 + 2 * index
    if slot + 2 > _u16(buf, vtable):
        return 0
    offset = _u16(buf, vtable + slot)
    return table + offset if offset else 0


def _target(buf: memoryview, table: int, index: int) -> int | None:
    """The position that the offset in field `index` points at; None if the field is absent."""
    at = _field(buf, table, index)
    return at + _u32(buf, at) if at else None


def _at(buf: memoryview, at: int, size: int) -> int:
    # struct counts negative offsets from the end, which a damaged header must not reach.
    if size < 0 or not 0 <= at <= len(buf) - size:
        raise ValueError("an offset points outside the message")
    return at


def _u16(buf: memoryview, at: int) -> int:
    return int(_U16.unpack_from(buf, _at(buf, at, 2))[0])


def _i32(buf: memoryview, at: int) -> int:
    return int(_I32.unpack_from(buf, _at(buf, at, 4))[0])


def _u32(buf: memoryview, at: int) -> int:
    return int(_U32.unpack_from(buf, _at(buf, at, 4))[0])

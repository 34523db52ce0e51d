"""The JSON of weir's own records (under `_weir/`): typed, compact, sorted, small.

Sorted keys give equal records equal bytes, so comparing bytes settles a lost answer (F-9). A key
with its default value is left out, so an earlier release reads what a later one writes until the
later one uses a key that the earlier one does not know. It then refuses the record: it cannot know
what it would ignore.
"""

from __future__ import annotations

import json
import threading
from typing import ClassVar, Final, TypeVar, cast

import msgspec

from weir.errors import CorruptEntry, InvalidInput

T = TypeVar("T")

RECORD_BYTES_MAX: Final = 64 << 20
COPY: Final = "Restore the object from a copy of the table, and find out what else writes there"
"""What to do about a record that cannot be read."""


_decoders: dict[type, msgspec.json.Decoder[object]] = {}
_making_decoder = threading.Lock()  # noqa: TID251  msgspec is shared by all real threads


class Record(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One kind of record: its fields are the keys. The chain it was read from sets these two, which
    are not stored."""

    KIND: ClassVar[str] = "weir record"
    """Its name in error messages."""
    seq: int = 0
    """Its number in the chain; 0: it is in none."""
    written: float = 0.0
    """When the store wrote it."""


def dumps(record: object) -> bytes:
    """The record's bytes; `InvalidInput` for values JSON cannot hold, including NaN."""
    try:
        body = msgspec.to_builtins(record, str_keys=True, order="deterministic")
        if isinstance(record, Record):
            body = {key: value for key, value in body.items() if key not in ("seq", "written")}
        text = json.dumps(
            body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"a record cannot be written as JSON: {error}") from error


def decode(data: bytes | str, kind: type[T]) -> T:
    """The JSON as a struct of that kind; `msgspec.DecodeError` or `ValidationError` otherwise.

    msgspec learns a type when it first decodes one, and a second thread that decodes it meanwhile
    uses what is half made: the process died. So decoders are made one at a time.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        with _making_decoder:
            decoder = _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return cast("T", decoder.decode(data))


def loads(data: bytes, kind: type[T], path: str) -> T:
    """The record of that kind in `data`, or `CorruptEntry` naming `path`."""
    if len(data) > RECORD_BYTES_MAX:
        raise CorruptEntry(
            f"{path} has {len(data)} bytes, more than the limit of {RECORD_BYTES_MAX}. {COPY}"
        )
    try:
        return decode(data, kind)
    except (ValueError, RecursionError, InvalidInput) as error:
        name = kind.KIND if issubclass(kind, Record) else Record.KIND
        raise CorruptEntry(
            f"{path} is not a {name} that this release can read: {error}. If a later release of"
            f" weir wrote it, upgrade weir. Otherwise: {COPY}"
        ) from error

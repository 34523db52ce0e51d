"""The JSON of weir's own records (under `_weir/`): compact, sorted, small.

Sorted keys give equal records equal bytes, so comparing bytes settles a lost answer (F-9).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from weir.errors import CorruptEntry, InvalidInput

RECORD_BYTES_MAX: Final = 64 << 20
COPY: Final = "Restore the object from a copy of the table, and find out what else writes there"
"""What to do about a record that cannot be read."""


def dumps(record: Mapping[str, Any]) -> bytes:
    """The record's bytes; `InvalidInput` for values JSON cannot hold, including NaN."""
    try:
        text = json.dumps(
            dict(record),
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
            allow_nan=False,
        )
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"a record cannot be written as JSON: {error}") from error


def loads(data: bytes | memoryview, path: str) -> dict[str, Any]:
    """The record in `data`, or `CorruptEntry` naming `path`."""
    if len(data) > RECORD_BYTES_MAX:
        raise CorruptEntry(
            f"{path} has {len(data)} bytes, more than the limit of {RECORD_BYTES_MAX}. {COPY}"
        )
    try:
        value = json.loads(bytes(data), parse_constant=_refuse, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise CorruptEntry(f"{path} is not a weir record: {error}. {COPY}") from error
    if not isinstance(value, dict):
        raise CorruptEntry(f"{path} is not a weir record: it is not a JSON object. {COPY}")
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not valid JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value

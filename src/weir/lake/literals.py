"""Keys as SQL text for Lance's filters.

A pyarrow expression would be neater, but travels as Substrait, which has no unsigned integers and
no large strings or binaries: all of them key types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import InvalidInput

_INT64_MIN: Final = -(2**63)


def quoted(column: str) -> str:
    """A column's name in a filter, whatever characters it holds."""
    if "`" in column:
        raise InvalidInput(f"column name {column!r} has a backtick and cannot be used in a filter")
    return f"`{column}`"


def literal(value: Any) -> str:
    """A key value as SQL."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    raise InvalidInput(f"a key of type {type(value).__name__} cannot be looked up")


def is_one_of(column: str, values: pa.Array | pa.ChunkedArray) -> str:
    """A filter that keeps the rows whose `column` is one of `values` (not null, at least one)."""
    name = quoted(column)
    items = pc.unique(values).to_pylist()
    if not items:
        raise InvalidInput(f"no value to look for in column {column!r}")
    # Lance parses the minus apart from the number, and 2**63 does not fit.
    lowest = _INT64_MIN in items if isinstance(items[0], int) else False
    texts = [literal(item) for item in items if not (lowest and item == _INT64_MIN)]
    parts = [f"{name} IN ({','.join(texts)})"] if len(texts) > 1 else []
    if len(texts) == 1:
        parts = [f"{name} = {texts[0]}"]
    if lowest:
        parts.append(f"{name} < {_INT64_MIN + 1}")
    return parts[0] if len(parts) == 1 else f"({' OR '.join(parts)})"


def key_filter(keys: pa.Table, names: Sequence[str]) -> str:
    """A filter that the rows of `keys` pass; with several key columns other rows may pass too."""
    return " AND ".join(is_one_of(name, keys.column(name)) for name in names)

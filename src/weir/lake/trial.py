"""A trial of a schema: two rows, one of them null, written by Lance and read back, in memory.

Lance accepts some types and names that it then cannot write or read: vectors of text, structs
without fields, a backtick in a name. Rows of such a column would be acknowledged, and never flushed
or read again (F-15). So a schema is tried before the first row: as an SSTable is written, scanned
and looked up, and as rows are merged into the base. Takes six milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, cast

import lance
import pyarrow as pa

from weir.errors import InvalidInput
from weir.format.exact import family_of
from weir.format.python_values import from_python
from weir.format.schema import TOMBSTONE_FIELD
from weir.lake.lance_errors import is_of_lance, plain_text
from weir.lake.whole_buffers import for_lance

_PLAIN: Final[dict[str, object]] = {
    "text": "1",
    "truth": True,
    "date": date(1970, 1, 1),
    "time": time(),
    "span": timedelta(),
}
"""A value of each family of types that needs nothing more to be known; all other types are null."""


def require_storable(
    schema: pa.Schema, primary_key: Sequence[str], *, storage_version: str | None = None
) -> None:
    """Raise `InvalidInput`, which names the column, unless Lance can store rows of the schema.

    `storage_version` is that of the table's files; None: the one that a new table gets.
    """
    if _failure(schema, primary_key, storage_version) is None:
        return
    # The key first: no other column can be tried without it.
    key = pa.schema([schema.field(name) for name in primary_key])
    for field in key:
        _require(field, _failure(pa.schema([field]), [field.name], storage_version))
    for field in schema:
        if field.name not in primary_key:
            _require(field, _failure(key.append(field), primary_key, storage_version))
    failure = _failure(schema, primary_key, storage_version)
    raise InvalidInput(f"Lance cannot store rows with the columns {schema.names}: {failure}")


def _require(field: pa.Field, failure: str | None) -> None:
    if failure is not None:
        raise InvalidInput(
            f"column {field.name!r}: Lance cannot store rows with this name and type"
            f" ({field.type}); choose another name or type. Lance says: {failure}"
        )


def _failure(schema: pa.Schema, key: Sequence[str], storage_version: str | None) -> str | None:
    """Why Lance cannot store two rows of this schema; None if it can."""
    fields = [field.remove_metadata().with_nullable(field.name not in key) for field in schema]
    wal = pa.schema([*fields, TOMBSTONE_FIELD])
    try:
        columns = [
            from_python([_sample(f.type)], f.type, f.name).take(
                pa.array([0, 0 if f.name in key else None])
            )
            for f in schema
        ]
        columns.append(pa.array([False, True]))
        rows = pa.Table.from_arrays(columns, schema=wal)
        # Each in-memory handle has a store of its own, gone with it: the name is never shared.
        dataset = lance.write_dataset(
            for_lance(rows), "memory://trial", data_storage_version=cast("Any", storage_version)
        )
        found = dataset.to_table(columns=wal.names, scan_in_order=True)
        if found.slice(0, 1).to_pylist() != rows.slice(0, 1).to_pylist():
            return "other values are read than were written"
        dataset.get_fragments()[0].open_session(columns=wal.names).take([1])  # type: ignore[no-untyped-call]
        # Any column will do where there is no key, as in a merge that only marks generations.
        merge = dataset.merge_insert(list(key) or schema.names[:1]).when_matched_update_all()
        merge.execute(for_lance(rows.slice(1)))
    except BaseException as error:
        if not isinstance(error, Exception) and not is_of_lance(error):
            raise
        return plain_text(error).strip()
    return None


def _sample(dtype: pa.DataType) -> Any:
    """A value of that type, as `from_python` takes it."""
    if isinstance(dtype, pa.BaseExtensionType):
        return _sample(dtype.storage_type)
    if pa.types.is_dictionary(dtype):
        return _sample(dtype.value_type)
    family = family_of(dtype)
    if family == "struct":
        return {dtype.field(i).name: _sample(dtype.field(i).type) for i in range(dtype.num_fields)}
    if family == "map":
        return [(_sample(dtype.key_type), _sample(dtype.item_type))]
    if family == "list":
        size = dtype.list_size if pa.types.is_fixed_size_list(dtype) else 1
        return [_sample(dtype.value_type)] * size
    if family == "number":
        return Decimal(0) if pa.types.is_decimal(dtype) else 1
    if family == "bytes":
        return b"1" * (dtype.byte_width if pa.types.is_fixed_size_binary(dtype) else 1)
    if family == "instant":
        return datetime(1970, 1, 1, tzinfo=None if dtype.tz is None else UTC)
    return _PLAIN.get(family)

"""Schemas between Lance and weir: field ids on the way in, key marks on the way out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from weir.errors import InvalidInput
from weir.format.expiry import EXPIRE_AFTER, Expire
from weir.format.nested import children, with_children
from weir.format.schema import COLUMN_MARK, FIELD_ID, TOMBSTONE, TableSchema, table_schema
from weir.lake.base.folded import LOADED, NOTE, NUMBER
from weir.lake.shared import SharedDataset

if TYPE_CHECKING:
    from lance.lance.schema import LanceField  # declared in stubs only

# Stored. Never change a value; add one.
KEY_MARK: Final = b"lance-schema:unenforced-primary-key"
KEY_POSITION: Final = b"lance-schema:unenforced-primary-key:position"

_OF_VERSIONS: Final = frozenset(name.encode() for name in (NOTE, NUMBER, LOADED, EXPIRE_AFTER))


def with_field_ids(dataset: SharedDataset) -> pa.Schema:
    """The dataset's schema with `lance:field_id` on every field that has an id of its own.

    `_tombstone` gets none: its id in an SSTable is the one that the base gives to its next new
    column, and the two must not be matched.
    """
    lance_fields = dataset.lance_schema.fields()
    arrow = dataset.schema
    fields = [
        field if field.name == TOMBSTONE else _with_id(field, lance_field)
        for field, lance_field in zip(arrow, lance_fields, strict=True)
    ]
    return pa.schema(fields, metadata=arrow.metadata)


def base_schema(dataset: SharedDataset) -> TableSchema:
    """The schema of a base table at the dataset's version."""
    key = [field.name() for field in dataset.lance_schema.unenforced_primary_key()]
    return table_schema(with_field_ids(dataset), key, dataset.max_field_id)


def _with_id(field: pa.Field, lance_field: LanceField) -> pa.Field:
    # A fold's note and the expiry rule belong to a version, not to the table: without them the
    # schema stays the same across folds and rule changes.
    kept = {k: v for k, v in (field.metadata or {}).items() if k not in _OF_VERSIONS}
    metadata = {**kept, FIELD_ID: str(lance_field.id()).encode()}
    return pa.field(
        field.name, _typed(field.type, lance_field.children()), field.nullable, metadata
    )


def _typed(dtype: pa.DataType, inside: Sequence[LanceField]) -> pa.DataType:
    if pa.types.is_map(dtype):
        # Lance has a field for the entries struct, Arrow only for its two children.
        inside = inside[0].children()
    if not inside:
        return dtype  # the item of a fixed-size list has no id
    pairs = zip(children(dtype), inside, strict=True)
    return with_children(dtype, [_with_id(field, lance_field) for field, lance_field in pairs])


def marked_key(
    schema: pa.Schema, primary_key: Sequence[str], expire: Expire | None = None
) -> pa.Schema:
    """`schema` as Lance wants it for `primary_key`: key columns not null, marked and numbered.

    Each column gets the mark of the base's first version, and the expiry column carries the rule.
    """
    for name in primary_key:
        if schema.get_field_index(name) < 0:
            raise InvalidInput(f"primary key column {name!r} is not a column of the table")
    fields = []
    for field in schema:
        metadata = {
            k: v
            for k, v in (field.metadata or {}).items()
            if k not in (KEY_MARK, KEY_POSITION, FIELD_ID, EXPIRE_AFTER.encode())
        }
        metadata[COLUMN_MARK] = b"1"
        if expire is not None and field.name == expire.column:
            metadata.update({k.encode(): v.encode() for k, v in expire.to_metadata().items()})
        nullable = field.nullable
        if field.name in primary_key:
            nullable = False
            metadata[KEY_MARK] = b"true"
            metadata[KEY_POSITION] = str(list(primary_key).index(field.name) + 1).encode()
        fields.append(pa.field(field.name, field.type, nullable, metadata))
    return pa.schema(fields, metadata=schema.metadata)

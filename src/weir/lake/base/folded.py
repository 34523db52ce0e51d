"""The note that a fold leaves in the version that holds its rows.

A fold's commit brings its rows into the base; the marks that make native readers skip its
generations follow in the next commit (pylance has no operation that carries both). In between, the
version itself must name those generations, in a checkpoint and in a clone as well, or rows of an
append-only table would be read twice and a replaced table would show what was replaced. So the
commit that brings the rows also writes a note of the generations into its schema, as column
metadata, which Lance keeps through compactions, deletes, updates and index builds (L-7). It is not
schema metadata: a native writer compares that with its log and would not open the shard.

Once the generations are marked the note is redundant, and the next fold replaces it. The key
columns also carry the number of the last fold, which stays. It exposes a base that was rolled back
to before a fold whose log entries are no longer in any shard (`weir.upkeep.compact.progress`).

Releases up to 0.1.0 instead announced a fold in the table's config, by the name of a file it would
add; such versions are still read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import lance
from lance.schema import LanceSchema

from weir.errors import CorruptEntry
from weir.format.protobuf import Field, message_classes

# Stored. Never change a value; add one.
NOTE: Final = "weir:folded"
"""Key of a column's metadata: shard to generation, as JSON."""
NUMBER: Final = "weir:fold"
"""Key of the metadata of key columns, which nobody drops: the number of the last fold."""
ANNOUNCED: Final = "weir.fold."
"""Prefix of the keys in the table's config that hold announcements of old releases."""

NOTED_COLUMNS: Final = 4
"""How many columns get the note: a column that is dropped takes its copy with it."""

# The parts of a field in Lance's file format that are changed here; the rest is kept as it is.
_MESSAGES = message_classes(
    "weir.lance_field",
    {
        "Entry": [Field(1, "key", "string"), Field(2, "value", "bytes")],
        "Column": [
            Field(2, "name", "string"),
            Field(4, "parent_id", "int32"),
            Field(10, "metadata", "Entry", repeated=True),
        ],
    },
)


def folded_into(dataset: lance.LanceDataset) -> dict[UUID, int]:
    """Per shard the generation that this version's notes name. No request."""
    found: dict[UUID, int] = {}
    for field in dataset.schema:
        text = (field.metadata or {}).get(NOTE.encode())
        if text is not None:
            _take_in(found, _parsed(text, f"{dataset.uri}: the note of column {field.name!r}"))
    for key, note in dataset.config().items():
        if key.startswith(ANNOUNCED):
            _take_in(found, _announced(dataset, note, f"{dataset.uri}: its config {key!r}"))
    return found


def fold_number(dataset: lance.LanceDataset) -> int:
    """The number of the last fold in this version, or 0 if none has a number. No request."""
    texts = [(field.metadata or {}).get(NUMBER.encode(), b"0") for field in dataset.schema]
    return max((int(text) for text in texts if text.isdigit()), default=0)


def with_note(
    schema: LanceSchema, folded: Mapping[UUID, int], key: Sequence[str] = (), number: int = 0
) -> LanceSchema:
    """`schema` with a note of `folded` in place of any earlier note; everything else as it was.

    Unless it is 0, `number` becomes the number of the last fold, stored on the `key` columns.
    """
    # Take the schema apart as pickle does: the only way to change metadata and keep the field ids.
    build: Any
    build, (metadata, *protos) = schema.__reduce__()  # type: ignore[str-unpack]
    text = json.dumps({str(shard): number for shard, number in sorted(folded.items())}).encode()
    left = NOTED_COLUMNS if folded else 0
    changed = []
    for raw in protos:
        column = _MESSAGES["Column"].FromString(raw)
        is_numbered = bool(number) and column.parent_id < 0 and column.name in key
        replaced = (NOTE, NUMBER) if is_numbered else (NOTE,)
        kept = [entry for entry in column.metadata if entry.key not in replaced]
        del column.metadata[:]
        column.metadata.extend(kept)
        if is_numbered:
            column.metadata.add(key=NUMBER, value=str(number).encode())
        if left and column.parent_id < 0:
            column.metadata.add(key=NOTE, value=text)
            left -= 1
        changed.append(column.SerializeToString())
    made: LanceSchema = build(metadata, *changed)
    return made


def _take_in(found: dict[UUID, int], more: Mapping[UUID, int]) -> None:
    for shard, generation in more.items():
        found[shard] = max(generation, found.get(shard, 0))


def _parsed(text: bytes | str, what: str) -> dict[UUID, int]:
    try:
        return {UUID(shard): int(number) for shard, number in json.loads(text).items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise CorruptEntry(
            f"{what} is damaged: {error!r}. Restore an older version of the base with Lance, or a"
            " checkpoint"
        ) from error


def _announced(dataset: lance.LanceDataset, text: str, what: str) -> dict[UUID, int]:
    """The generations of an announcement if its fold, known by its file, is in this version."""
    try:
        note = json.loads(text)
        witness, generations = str(note["witness"]), json.dumps(note["generations"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptEntry(
            f"{what} is damaged: {error!r}. Restore an older version of the base with Lance, or a"
            " checkpoint"
        ) from error
    is_here = any(
        file.path == witness
        for fragment in dataset.get_fragments()
        for file in fragment.metadata.files
    )
    return _parsed(generations, what) if is_here else {}

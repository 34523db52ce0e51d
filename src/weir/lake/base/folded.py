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

A load leaves a number that stays, too: change feeds, which never see its rows, know by it that they
would pass over a load (P-3).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast
from uuid import UUID

from lance.schema import LanceSchema

from weir.errors import CorruptEntry
from weir.format.lance_messages import LanceField, parse
from weir.lake.shared import SharedDataset

# Stored. Never change a value; add one.
NOTE: Final = "weir:folded"
"""Key of a column's metadata: shard to generation, as JSON."""
NUMBER: Final = "weir:fold"
"""Key of the metadata of key columns, which nobody drops: the number of the last fold."""
LOADED: Final = "weir:loaded"
"""Key of a column's metadata: the number of the last load, higher than all before."""

_DIGITS: Final = 20
"""Of the largest number of 64 bits; longer ones are not weir's, and Python may refuse them."""
NOTED_COLUMNS: Final = 4
"""How many columns get a note: a column that is dropped takes its copy with it."""


def noted_columns(dataset: SharedDataset, name: str = NOTE) -> list[str]:
    """The columns that carry a note of a fold, or that of another name. No request."""
    return [field.name for field in dataset.schema if name.encode() in (field.metadata or {})]


def folded_into(dataset: SharedDataset) -> dict[UUID, int]:
    """Per shard the generation that this version's notes name. No request."""
    found: dict[UUID, int] = {}
    for field in dataset.schema:
        text = (field.metadata or {}).get(NOTE.encode())
        if text is not None:
            _take_in(found, _parsed(text, f"{dataset.uri}: the note of column {field.name!r}"))
    return found


def fold_number(dataset: SharedDataset) -> int:
    """The number of the last fold in this version, or 0 if none has a number. No request."""
    return _highest(dataset, NUMBER)


def load_number(dataset: SharedDataset) -> int:
    """The number of the last load in this version, or 0 if there was none. No request."""
    return _highest(dataset, LOADED)


def _highest(dataset: SharedDataset, name: str) -> int:
    texts = [(field.metadata or {}).get(name.encode(), b"0") for field in dataset.schema]
    return max((int(text) for text in texts if text.isdigit() and len(text) <= _DIGITS), default=0)


def with_note(
    schema: LanceSchema,
    folded: Mapping[UUID, int],
    key: Sequence[str] = (),
    number: int = 0,
    loaded: int = 0,
) -> LanceSchema:
    """`schema` with a note of `folded` in place of any earlier note; everything else as it was.

    Unless they are 0, `number` becomes the number of the last fold, stored on the `key` columns,
    and `loaded` that of the last load.
    """
    # Take the schema apart as pickle does: the only way to change metadata and keep the field ids.
    build: Any
    build, (metadata, *protos) = schema.__reduce__()  # type: ignore[str-unpack]
    text = json.dumps({str(shard): number for shard, number in sorted(folded.items())}).encode()
    left = NOTED_COLUMNS
    changed = []
    for raw in protos:
        column = parse(LanceField, cast("bytes", raw))
        is_numbered = bool(number) and column.parent_id < 0 and column.name in key
        replaced = {NOTE, *([NUMBER] if is_numbered else []), *([LOADED] if loaded else [])}
        kept = [entry for entry in column.metadata if entry.key not in replaced]
        del column.metadata[:]
        column.metadata.extend(kept)
        if is_numbered:
            column.metadata.add(key=NUMBER, value=str(number).encode())
        if left and column.parent_id < 0:
            if folded:
                column.metadata.add(key=NOTE, value=text)
            if loaded:
                column.metadata.add(key=LOADED, value=str(loaded).encode())
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
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptEntry(
            f"{what} is damaged: {error!r}. Restore an older version of the base with Lance, or a"
            " checkpoint"
        ) from error

"""Helpers for tests of whole tables: counting requests, and folding SSTables with pylance alone."""

import uuid
from collections import Counter
from typing import Any

import lance
import pyarrow as pa
from lance.mem_wal import CompactedSsTable

import weir
from weir.format.schema import TOMBSTONE
from weir.lake.api import Base
from weir.lake.base import fold
from weir.upkeep.loads import PreparedLoad, load

VERBS = (
    "copy",
    "delete",
    "get",
    "get_many",
    "get_range",
    "head",
    "head_many",
    "list",
    "list_folder",
    "list_many",
    "put",
    "put_if_absent",
    "put_if_match",
)


class CountingStore:
    """A store that counts `calls` by verb, `got` objects by path, and `requests`, one for each
    object requested."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: Counter[str] = Counter()
        self.got: Counter[str] = Counter()
        self.requests = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in VERBS:
            return found

        def call(*args: Any, **options: Any) -> Any:
            self.calls[name] += 1
            if name == "get":
                self.got[args[0]] += 1
            many = name in ("get_many", "head_many", "list_many")
            self.requests += len(args[0]) if many else 1
            return found(*args, **options)

        return call

    def reset(self) -> None:
        """Reset the counts to zero."""
        self.calls.clear()
        self.got.clear()
        self.requests = 0


def count_requests(table: weir.Table) -> CountingStore:
    """Count the table's store requests from now on, except those that Lance itself makes."""
    counting = CountingStore(table.core.store)
    if table.core.wal is table.core.store:
        table.core.wal = counting
    table.core.store = counting
    return counting


def load_rows(table: weir.Table, rows: dict[int, Any], *, replaces: bool) -> None:
    """Load rows of id and v into the base, past the log, as an overwrite or a bulk load does."""

    def write(base: Base) -> PreparedLoad:
        found = [{"id": k, "v": v} for k, v in rows.items()]
        new = pa.Table.from_pylist(found, base.schema.plain)
        edits = [fold.write_rows(base, new)]
        if table.primary_key and not replaces:
            keys = new.select(list(table.primary_key))
            edits.append(fold.delete_keys(base, keys, table.core.env))
        return PreparedLoad(fold.combine(edits), len(rows))

    load(table.core, write, job_id=uuid.uuid4().hex, replaces=replaces)


def compact_with_pylance(table: weir.Table) -> None:
    """Fold every published SSTable into the base, oldest first, with pylance's merges (L-4)."""
    base = table.core.lake.open_base()
    key = list(table.primary_key)
    for shard in table.shards():
        folded = base.compacted.get(shard.id, 0)
        for sstable in shard.manifest().sstables:
            if sstable.generation <= folded:
                continue
            reader = table.core.lake.open_sstable(shard.id, sstable.path, base.schema)
            rows = pa.Table.from_batches(reader.scan())
            dead = rows.filter(rows[TOMBSTONE])
            live = rows.filter(pa.compute.invert(rows[TOMBSTONE])).drop_columns([TOMBSTONE])
            dataset = lance.dataset(table.uri)
            if dead.num_rows:
                dataset.merge_insert(key).when_matched_delete().execute(dead.select(key))
            merge = dataset.merge_insert(key).when_matched_update_all()
            merge.when_not_matched_insert_all()
            merge.mark_sstables_as_compacted([CompactedSsTable(str(shard.id), sstable.generation)])
            merge.execute(live.cast(table.schema))

"""The MemWAL index entry, which tells native programs who may write and which indexes to keep.

The sharding specs decide who may write (X-1): LanceDB always requests id 1, pylance takes the one
it finds, and neither opens a writer if there are two. A refused writer has claimed nothing.

  one spec, id 1        LanceDB and pylance: the first routing, LanceDB's ids, log beside the data
  one spec, id above 1  pylance: resharded, to ids that LanceDB does not know
  no spec               pylance, in a shard that its user names: a shard for each writer
  two specs             nobody: the log is in a store of its own, where they would not find it;
                        `ELSEWHERE` is added for versions that do not check the specs

LanceDB's searches use the indexes that the entry names; writers keep all while its flag is set. A
commit of Lance 13 drops the flag. Both are corrected here (X-5).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

import pyarrow as pa

from weir.errors import CommitConflict
from weir.format.base_manifest import MemWalDetails, ShardingField, ShardingSpec
from weir.format.sharding import Bucket, Identity, PerWriter, Sharding, from_mem_wal
from weir.lake.index import dataset_indexes
from weir.records.table import TableRecord
from weir.routing.core import Core

logger = logging.getLogger("weir.routing")

ROUTING: Final = "weir.routing"  # Stored.
"""Property of a commit that brings the entry up to date: the number of the routing."""
_FIELD: Final = "bucket"  # Stored: LanceDB and pylance use this name for every sharding.
_LANCE_TYPES: Final = {"string": "utf8", "large_string": "large_utf8", "bool": "boolean"}
"""How pylance spells types whose Arrow names differ."""
ELSEWHERE: Final = "the_log_is_in_another_store"
"""An index that no table has. Lance 11 and older (LanceDB 0.38) check one spec only, but open no
writer if they cannot keep an index that the entry names."""
_MAINTAINED: Final = ("btree", "vector", "text")
"""Kinds of indexes that native writers keep in their SSTables."""


def update_mem_wal_index(core: Core, *, elsewhere: bool = False) -> bool:
    """Bring the entry up to date; True when it had to be changed. One read when it is right.

    For the holder of the compactors' claim, who also owns the marks in the entry; others call
    `weir.upkeep.exclusive.sync_mem_wal_index`.
    """
    found = wanted_mem_wal_index(core, elsewhere=elsewhere)
    if found is None:
        return False
    version, details = found
    core.lake.replace_mem_wal(
        details,
        planned_at=version,
        properties={ROUTING: str(core.record.routing_version)},
    )
    specs = [spec.spec_id for spec in details.sharding_specs]
    logger.info("natives.told table=%s specs=%s", core.uri, specs)
    return True


def try_update_mem_wal_index(core: Core, notes: list[str]) -> None:
    """`update_mem_wal_index`, left to the next run if another program changes the entry now."""
    try:
        update_mem_wal_index(core)
    except CommitConflict as lost:
        notes.append(f"the MemWAL index entry was not updated; the next compaction retries: {lost}")


def wanted_mem_wal_index(
    core: Core, *, elsewhere: bool = False
) -> tuple[int, MemWalDetails] | None:
    """The base version read and the entry as it should be; None: it is right, or there is none.

    `elsewhere`: the log is about to move away from the data, whatever the record says so far.
    """
    lake = core.lake
    if not lake.is_lance:
        return None
    base = lake.open_base()
    details = base.mem_wal
    if details is None:
        return None
    names = [i.name for i in dataset_indexes(base.dataset) if i.kind in _MAINTAINED]
    # by an older one, native writers would be let in where weir reads no more.
    record = core.latest_record()
    every = record.maintain_all
    elsewhere = elsewhere or record.wal_uri is not None
    specs = _specs(record, details, base.schema.plain, base.schema.field_ids, elsewhere=elsewhere)
    kept = sorted(names) if every else [n for n in details.maintained_indexes if n != ELSEWHERE]
    wanted = replace(
        details,
        sharding_specs=specs,
        num_shards=_count(record.sharding) if specs else details.num_shards,
        maintain_all=every,  # guard: X-5 test_shared_tables
        maintained_indexes=(*kept, ELSEWHERE) if elsewhere else tuple(kept),
    )
    return None if wanted == details else (base.version, wanted)


def _specs(
    record: TableRecord,
    details: MemWalDetails,
    columns: pa.Schema,
    ids: dict[str, int],
    *,
    elsewhere: bool,
) -> tuple[ShardingSpec, ...]:
    if isinstance(record.sharding, PerWriter) and not elsewhere:
        return ()
    if not record.spec and not elsewhere:
        return details.sharding_specs  # adopted without specs: there, shards are chosen by hand
    spec = _spec(record, details, columns, ids)
    # Two specs keep every native writer out; the id of the second does not matter.
    # guard: X-1 never test_shared_tables
    return (spec, replace(spec, spec_id=spec.spec_id + 1)) if elsewhere else (spec,)


def _spec(
    record: TableRecord, details: MemWalDetails, columns: pa.Schema, ids: dict[str, int]
) -> ShardingSpec:
    """The record's sharding as pylance would write it; an equivalent spec stays as it is."""
    names = {number: name for name, number in ids.items()}
    for known in details.sharding_specs:
        if from_mem_wal([known], names) == record.sharding:
            return replace(known, spec_id=record.spec)
    sharding = record.sharding
    gone = isinstance(sharding, Bucket | Identity) and sharding.column not in ids
    if gone and details.sharding_specs:
        # Another program renamed or dropped the column; the spec still knows its id and type.
        return replace(details.sharding_specs[0], spec_id=record.spec)
    column = None if not isinstance(sharding, Bucket | Identity) else sharding.column
    transform, result, parameters = "unsharded", "int32", {}
    if isinstance(sharding, Bucket):
        transform, parameters = "bucket", {"num_buckets": str(sharding.num)}
    elif isinstance(sharding, Identity):
        kind = str(columns.field(sharding.column).type)
        transform, result = "identity", _LANCE_TYPES.get(kind, kind)
    field = ShardingField(
        field_id=_FIELD,
        source_ids=() if column is None else (ids[column],),
        transform=transform,
        expression=None,
        result_type=result,
        parameters=parameters,
    )
    return ShardingSpec(spec_id=record.spec, fields=(field,))


def _count(sharding: Sharding) -> int:
    if isinstance(sharding, Bucket):
        return sharding.num
    return 0 if isinstance(sharding, Identity | PerWriter) else 1

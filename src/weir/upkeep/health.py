"""What other programs have done to a table, as findings for `weir doctor` (X-6).

Nothing is written. Of the base the keys are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal
from uuid import UUID

import numpy as np

from weir.errors import CommitConflict, CorruptEntry, WeirError
from weir.format.keys import pk_values
from weir.format.manifest import ShardManifest
from weir.format.sharding import from_mem_wal
from weir.keys.numbers import codes_of
from weir.keys.slots import Codes
from weir.lake.base.adopt import count_duplicates
from weir.merge.merge import merge_scan
from weir.read.reader import SnapshotReader
from weir.read.scan import with_snapshot
from weir.read.survey import ShardSurvey, survey_shards
from weir.records.holds import Holds
from weir.routing.core import Core
from weir.routing.guard import find_rivals
from weir.routing.natives import ELSEWHERE, wanted_mem_wal_index
from weir.upkeep.compact.progress import require_no_lost_rows
from weir.upkeep.parents import left_over_pins

OLD_TAG_SECONDS: Final = 7 * 86_400.0
"""LanceDB's `optimize` cleans up versions of this age, and raises when one of them has a tag."""

ROWS_CHECKED_MAX: Final = 10_000_000
"""Maximum rows of a base, or of all logs and SSTables, whose keys are checked for duplicates: the
codes of the keys are held in memory."""

PINS_SHOWN: Final = 5
"""Names of pins in one finding."""

State = Literal["ok", "note", "bad"]


@dataclass(frozen=True, slots=True)
class Health:
    """One finding."""

    name: str
    state: State
    detail: str


def find_problems(core: Core) -> Iterator[Health]:
    """Yield every finding. A durable read of the keys, and a survey of the shards."""
    _, shards = survey_shards(core)
    manifests = [one.manifest for one in shards]
    parts: list[Callable[[], Iterator[Health]]] = [
        lambda: _rivals(core, manifests),
        lambda: _index(core),
        lambda: _progress(core),
        lambda: _misrouted(core, manifests),  # guard: X-6 test_health
        lambda: _in_two_shards(core),
        lambda: _doubled(core),
        lambda: _lancedb(core, shards),
        lambda: _pins(core),
    ]
    for part in parts:
        try:
            yield from part()
        except WeirError as error:
            yield Health("table", "bad", f"{type(error).__name__}: {error}")


def _pins(core: Core) -> Iterator[Health]:
    """What collection keeps for somebody, with what is kept for ever: it costs storage silently."""
    pins = Holds(core.store).checkpoints()
    if not pins:
        return
    for told in left_over_pins(pins, core.store.now()):
        yield Health("clones", "note", told)
    ever = [pin.label for pin in pins if pin.expires is None]
    shown = ", ".join(sorted(ever)[:PINS_SHOWN]) + (", ..." if len(ever) > PINS_SHOWN else "")
    told = f"; {len(ever)} of them for ever: {shown}" if ever else ""
    yield Health("pins", "ok", f"{len(pins)} keep files from collection{told}")


def _rivals(core: Core, manifests: list[ShardManifest]) -> Iterator[Health]:
    for rival in find_rivals(core, manifests):
        yield Health(
            "shards",
            "bad",
            f"{rival}. Stop that program, then: weir adopt-shard {core.uri} {rival.shard}"
            " --as newer|older",
        )


def _index(core: Core) -> Iterator[Health]:
    base = core.base()
    details = base.mem_wal
    assert details is not None, "core.base refuses a base without it"
    names = {number: name for name, number in base.schema.field_ids.items()}
    told = from_mem_wal(details.sharding_specs, names)
    if told is not None and core.record.spec and told != core.record.sharding:
        yield Health(
            "MemWAL index",
            "bad",
            f"it says {told}, but the table is sharded by {core.record.sharding}: another program"
            " replaced the index (LanceDB: set_lsm_write_spec). Check the table for shards of that"
            " program, then run weir compact, which corrects the index",
        )
        return
    wanted = wanted_mem_wal_index(core)
    if wanted is None:
        return
    ids = [spec.spec_id for spec in details.sharding_specs]
    if wanted[1].sharding_specs != details.sharding_specs:
        yield Health(
            "MemWAL index",
            "bad",
            f"it offers native writers the sharding specs {ids} instead of"
            f" {[spec.spec_id for spec in wanted[1].sharding_specs]}; the next write or compaction"
            " corrects it",
        )
    missing = {*wanted[1].maintained_indexes} - {*details.maintained_indexes, ELSEWHERE}
    if missing:
        yield Health(
            "indexes",
            "note",
            f"{', '.join(sorted(missing))}: not yet listed for LanceDB's searches; the next"
            " compaction that folds rows adds them",
        )


def _progress(core: Core) -> Iterator[Health]:
    """Rows that the base once held, and that neither it nor a shard holds now (L-8)."""
    try:
        require_no_lost_rows(core)
    except (CommitConflict, CorruptEntry) as lost:
        yield Health("progress", "bad", str(lost))


def _misrouted(core: Core, manifests: list[ShardManifest]) -> Iterator[Health]:
    """Rows in a shard where the routing does not look: `get` and the next put would miss them."""
    router = core.router
    if not core.record.primary_key or router.column_name is None:
        return
    folded, schema = core.base().compacted, core.known_schema()
    for manifest in manifests:
        shard = manifest.shard_id
        if not core.is_routed(shard, manifest):
            continue
        value, found = core.value_of(shard, manifest), 0
        for table in manifest.sstables:
            if table.generation <= folded.get(shard, 0):
                continue
            reader = core.lake.open_sstable(shard, table.path, schema)
            for batch in reader.scan([router.column_name]):
                found += batch.num_rows - (router.mask(batch, value).true_count)
        if found:
            yield Health(
                "shards",
                "bad",
                f"{found} rows of other values are in shard {shard} of {value!r}: another program"
                " wrote them there (LanceDB: validate_single_shard(False)). Run weir compact, which"
                " folds them into the base, where every reader finds them",
            )


def _in_two_shards(core: Core) -> Iterator[Health]:
    """Keys with fresh rows in two shards that take writes: which row is newer is unknown."""
    if not core.record.primary_key:
        return
    codes = with_snapshot(core, "durable", None, _fresh_keys)
    if codes is None:
        yield Health(
            "shards",
            "note",
            "not checked for keys in two shards: the logs and SSTables have more than"
            f" {ROWS_CHECKED_MAX:,} rows. Run weir compact, which folds them",
        )
    if codes is None or len(codes) < 2:
        return
    seen, counts = np.unique(np.concatenate([*codes.values()]), return_counts=True)
    shared = seen[counts > 1]
    if len(shared):
        where = [str(shard) for shard, own in codes.items() if np.isin(own, shared).any()]
        yield Health(
            "shards",
            "bad",
            f"{len(shared)} keys have rows in more than one of the shards {', '.join(where)}, and"
            " which row is newer is unknown: another program wrote there. Stop it. Fold a shard"
            f" outside the routing with weir adopt-shard {core.uri} ID --as newer|older, and rows"
            " of other values with weir compact",
        )


def _fresh_keys(reader: SnapshotReader) -> dict[UUID, Codes] | None:
    """A code for each key that has a fresh row, by shard; None when there are too many."""
    key, codes, left = list(reader.schema.primary_key), {}, ROWS_CHECKED_MAX
    for cut in (c for c in reader.snapshot.cuts if not c.sealed):  # sealed ones are always older
        levels = reader.levels_of(cut)
        left -= sum(level.rows for level in levels)
        if left < 0:
            return None
        _, rows = merge_scan(levels, None, reader.schema, columns=key)
        parts = [codes_of(pk_values(batch, key)) for batch in rows if batch.num_rows]
        if parts:
            codes[cut.shard] = np.unique(np.concatenate(parts))
    return codes


def _doubled(core: Core) -> Iterator[Health]:
    """Keys that are in the base twice, as a plain insert with Lance leaves them (L-8)."""
    base = core.base()
    if not core.record.primary_key:
        return
    if base.rows > ROWS_CHECKED_MAX:
        yield Health(
            "base",
            "note",
            f"not checked for duplicate keys: it has {base.rows:,} rows, the limit is"
            f" {ROWS_CHECKED_MAX:,}",
        )
        return
    doubled = count_duplicates(base.dataset, core.record.primary_key)
    if doubled:
        yield Health(
            "base",
            "bad",
            f"{doubled} rows have the key of another row: another program inserted them without a"
            " check for existing keys (pylance: insert, mode 'append'; LanceDB: add). Scans and get"
            " show all of them. Put those keys again with weir and compact, which leaves one row of"
            " each, or delete the wrong ones with Lance",
        )


def _lancedb(core: Core, shards: list[ShardSurvey]) -> Iterator[Health]:
    reason = _refusal(core)
    if reason is not None:
        yield Health("lancedb", "note", f"LanceDB can read here but not write: {reason}")
        return
    yield Health("lancedb", "ok", "LanceDB may write here")
    behind = [one.id for one in shards if one.log is not None]
    if behind:
        yield Health(
            "lancedb",
            "note",
            f"{len(behind)} shards have unflushed entries, which LanceDB 0.40 cannot replay: close"
            f" the writer, or flush (first: {behind[0]})",
        )
    now = core.env.clock.wall()
    old = [c for c in Holds(core.store).checkpoints() if now - c.created > OLD_TAG_SECONDS]
    if old:
        yield Health(
            "lancedb",
            "note",
            f"{len(old)} checkpoints are older than seven days, and their tags make LanceDB's"
            " optimize() fail; no data is lost. Delete them, or use weir compact instead",
        )


def _refusal(core: Core) -> str | None:
    record = core.record
    if record.wal_uri is not None:
        return f"its log is in a store of its own, {record.wal_uri}"
    if not record.is_native:
        return "it was resharded, and LanceDB knows only the first routing of a table"
    if not record.spec:
        return "its MemWAL index names no sharding"
    return None

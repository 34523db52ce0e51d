"""A log was folded into the base while a flush in the same epoch published a part of it.

Compaction of a WAL-only table then moved R past the rest. The SSTable of that part was older than
the base but was read as newer, so rows reverted to earlier values (L-2). A move of the log, a seal
and a checkpoint of scope "all" flush such tables. Found by the simulator's moves (seed 1184).
"""

from dataclasses import replace

import pytest

import weir
from simulator.steps import watched
from tests.support.moments import SCHEMA, again, expect, make, put, rows
from weir.config import WriterConfig
from weir.errors import CommitConflict
from weir.format.manifest import SsTable
from weir.log.manifests import Manifests
from weir.log.rules import Evidence
from weir.read.cache import ReadCache
from weir.read.survey import survey_shard
from weir.types import Generation, Position
from weir.upkeep.compact.logs import publish_closed
from weir.upkeep.compact.run import compact

A, B = range(10), range(5)


def test_l2_a_fold_does_not_pass_entries_above_one_that_was_flushed_meanwhile(tmp_path):
    config = WriterConfig(enable_memtable=False, max_memtable_rows=1)
    table = make(tmp_path / "t", 1, writer_defaults=config)
    shard = table.shards()[0]
    writer = shard.writer()
    put(writer, A, "a")
    put(writer, B, "b")
    first = shard.manifest().last_seen + 2  # after the fence

    def publish_first(step):
        if step != "committed":
            return
        core = again(table).core
        schema = core.schema()
        site = core.log(shard.id).current_site()
        entry = next(iter(core.attached.of(ReadCache).entries(site, first - 1, first, pinned=True)))
        assert entry.batches, "the entry that holds A"
        info = core.lake.write_sstable(shard.id, "0123abcd_gen_1", entry.batches, schema)

        def change(current):
            made = SsTable(
                generation=current.current_generation,
                path="0123abcd_gen_1",
                in_memory_bytes=info.in_memory_bytes,
                physical_rows=info.rows,
                primary_key_bytes=info.primary_key_bytes,
            )
            following = replace(
                current,
                sstables=(made,),
                current_generation=Generation(current.current_generation + 1),
                replay_after=Position(first),
                last_seen=Position(max(first, current.last_seen)),
            )
            return following, Evidence(covered=Position(first))

        Manifests(site).update(change, epoch=writer.epoch)

    compact(watched(table.core, "compact", publish_first))
    assert rows(again(table)) == expect((A, "a"), (B, "b"))
    writer.close()
    again(table).compact()
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


def test_l6_a_log_that_was_discarded_meanwhile_is_not_published(tmp_path):
    """A restore moves R in the epoch it claimed, without a generation. That raised RuleBroken,
    which alone kept the discarded rows out (seed 51562 of the simulator's restores)."""
    config = WriterConfig(enable_memtable=False, max_memtable_rows=1)
    table = weir.create(str(tmp_path / "t"), SCHEMA, writer_defaults=config)
    with table.shards()[0].writer() as writer:
        for text in "abc":
            put(writer, B, text)
    found = survey_shard(table.core, table.shards()[0].id)
    log = found.log

    def discard(current):
        last = Position(log.through)
        return replace(current, replay_after=last, last_seen=last), Evidence(covered=last)

    Manifests(log.site).update(discard, epoch=found.manifest.writer_epoch)
    with pytest.raises(CommitConflict):
        publish_closed(table.core, found)

"""A batch too large for one log entry: SSTables that one manifest commit makes visible together.

Keeps
  P-1  the shard is claimed; a newer attempt fences this one before its commit
  P-2  all of it is in or nothing is, token included: announced before the commit, true with it
  W-4  the rows are in the log before a manifest publishes them: the change feed misses none
  M-6  memory holds one chunk, however many there are
The log entries are marked as staged, and carry the tag of the previous generation, which pylance
treats as one that is in an SSTable already: a reader sees none of the rows before the commit, and a
replay of the log of an attempt that died skips them. That needs a log without live entries between
R and ours, so rows that older writers left are flushed first. A change feed reads the log: it sees
the rows of an attempt that died, and those of the next attempt again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from weir.durations import Duration
from weir.env import Env
from weir.errors import CommitConflict
from weir.format import paths
from weir.format.manifest import ShardManifest, SsTable
from weir.format.schema import TableSchema
from weir.lake.api import Lake
from weir.log.appender import WalAppender
from weir.log.fence import claim_shard
from weir.log.intake import Intake, Owns
from weir.log.manifests import Manifests
from weir.log.rules import Evidence
from weir.log.site import ShardSite
from weir.records.statements import is_open_mark
from weir.shard.replay import Replay
from weir.shard.tokens import Tokens
from weir.types import Generation, Position, Version

logger = logging.getLogger("weir.shard")

ATTEMPTS: Final = 8
"""How often the log is flushed and claimed again when other writers write in between."""


class LargeBatch:
    """One batch of one shard. Not to be shared."""

    def __init__(
        self,
        appender: WalAppender,
        *,
        schema: TableSchema,
        lake: Lake,
        belongs: Owns | None = None,
    ) -> None:
        """Use `LargeBatch.open`."""
        self._appender = appender
        self._schema = schema
        self._lake = lake
        self._intake = Intake(schema, belongs)
        self._first = Generation(appender.claim.manifest.current_generation)
        self._covered = appender.claim.fence
        self._tables: list[SsTable] = []
        self.tokens = Tokens(appender.site)

    @staticmethod
    def open(
        flush: Callable[[], ShardSite],
        *,
        schema: TableSchema,
        lake: Lake,
        env: Env,
        belongs: Owns | None = None,
        fence_ttl: Duration | None = None,
    ) -> LargeBatch:
        """Claim the shard when its log has no live entry; `flush` flushes it and returns its site.

        Raises what opening a writer raises, and `CommitConflict` when other writers go on writing.
        """
        for _ in env.attempts(ATTEMPTS):
            site = flush()
            manifests = Manifests(site)
            claim = claim_shard(site, manifests, fence_ttl=fence_ttl)
            replay = Replay(site, manifests, claim, keyed=bool(schema.primary_key))
            # P-8: a statement that came after the flush is settled by the next one.
            # guard: W-1 always test_large_batches
            if next(replay, None) is None and not is_open_mark(claim.statement):
                appender = WalAppender(site, schema, claim, manifests=manifests)
                return LargeBatch(appender, schema=schema, lake=lake, belongs=belongs)
            logger.info("load.again %s", site.label)
        raise CommitConflict(
            f"{site}: other writers wrote to the shard {ATTEMPTS} times before a large batch could"
            " start; nothing of it was written. Stop them, or write smaller batches"
        )

    def add(self, rows: pa.Table) -> None:
        """Write one chunk: a log entry, then an SSTable. Readers do not see it yet."""
        batches = self._intake.rows(rows)
        if not batches:
            return
        dead = Generation(self._first - 1)
        self._covered = self._appender.append_shaped(batches, generation=dead, is_staged=True)
        self._appender.site.env.failpoint("load.logged")
        self._tables.append(self._write(batches))
        self._appender.site.env.failpoint("load.written")

    def publish(self, *, app: str, version: int) -> None:
        """Make all of it visible, with its token, in one manifest commit."""
        names = [table.path for table in self._tables]
        note = self.tokens.announce(app, version, names, epoch=self._appender.epoch)
        self._appender.site.env.failpoint("load.announced")
        tried: list[Version] = []

        def change(current: ShardManifest) -> tuple[ShardManifest, Evidence] | None:
            if self._appender.manifests.published(self._tables[0], current, tried):
                return None
            if current.current_generation != self._first:
                raise CommitConflict(
                    f"{self._appender.site}: another process published generation {self._first}"
                    " while a large batch was written; nothing of it was committed, write it again"
                )
            tried.append(Version(current.version + 1))
            reached = Position(max(self._covered, current.replay_after))
            following = replace(
                current,
                sstables=(*current.sstables, *self._tables),
                current_generation=Generation(self._first + len(self._tables)),
                replay_after=reached,
                last_seen=Position(max(current.last_seen, reached)),
                closed_epoch=self._appender.epoch,
            )
            return following, Evidence(covered=self._covered)

        self._appender.manifests.update(change, epoch=self._appender.epoch)
        self._appender.site.env.failpoint("load.published")
        self.tokens.record(app, version)
        self._appender.site.store.delete([note])
        logger.info(
            "load.published %s generations=%d-%d rows=%d",
            self._appender.site.label,
            self._first,
            self._first + len(self._tables) - 1,
            sum(table.physical_rows or 0 for table in self._tables),
        )

    def _write(self, batches: Sequence[pa.RecordBatch]) -> SsTable:
        site = self._appender.site
        generation = Generation(self._first + len(self._tables))
        name = paths.sstable_name(generation, f"{site.env.random.getrandbits(32):08x}")
        info = self._lake.write_sstable(site.shard, name, batches, self._schema)
        return info.listed_as(generation, name)

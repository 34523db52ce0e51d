"""Frozen MemTables to SSTables, in order, in the background; then one manifest commit each.

Keeps
  M-4  the SSTable is complete before a single manifest version names it and moves R
  W-2  every manifest written here carries the largest R the log allows
  W-3  closing the gap needs neither a row nor an SSTable
  W-4  nothing is published whose rows are not durable in the log
  W-5  generations are published in order
  P-2  tokens of the rows are recorded before R passes them
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from weir.env import Thread
from weir.errors import CommitConflict, FencedError, StoreError, WeirError
from weir.format import paths
from weir.format.manifest import ShardManifest, SsTable
from weir.format.schema import TableSchema
from weir.format.wal_entry import Fill, WalEntry
from weir.lake.api import Lake
from weir.log.appender import WalAppender
from weir.log.rules import Evidence
from weir.search.memory import WriterIndexes
from weir.shard.ending import internal
from weir.shard.group import GroupCommit
from weir.shard.memtable import MemTable
from weir.shard.persist import persist
from weir.shard.stats import Counters
from weir.shard.tokens import Tokens
from weir.types import Generation, Position, Version

log = logging.getLogger("weir.shard")

CUTS_KEPT = 64
"""Generations that may be published while one flush waits to be told its own cut."""


class MemTables:
    """The active MemTable, those being flushed, and the thread that flushes them.

    Guarded by the group commit's lock, like all of the writer's state.
    """

    def __init__(
        self,
        schema: TableSchema,
        lake: Lake,
        appender: WalAppender,
        counters: Counters,
        indexes: WriterIndexes,
    ) -> None:
        self._env = appender.site.env
        self.indexes = indexes
        self._schema = schema
        self._lake = lake
        self._appender = appender
        self._counters = counters
        self._tokens = Tokens(appender.site)
        self.manifest: ShardManifest = appender.claim.manifest
        self.active = MemTable(Generation(self.manifest.current_generation), schema, self._env)
        self.frozen: deque[MemTable] = deque()
        self._cuts: dict[int, ShardManifest] = {self.manifest.current_generation: self.manifest}
        """The newest manifest before each of the latest generations: the cut a checkpoint pins."""
        self.durable: Position = appender.claim.fence
        """The last position whose rows, if any, have been booked in their MemTable. Not the
        appender's own counter: that one runs ahead for the moment between a put's answer and its
        booking, and an R taken then would pass rows no SSTable holds (W-1)."""
        self._publishing = self._env.threads.lock()
        """Held from a commit until readers see it. Of two commits the one heard of later would set
        the manifest back and hide the other's rows (M-1), or take the other for a fold (L-6)."""
        self._thread: Thread | None = None
        self._stopping = False

    def attach(self, group: GroupCommit) -> None:
        """Share the writer's lock and its end."""
        self._group = group
        self._changed = self._env.threads.condition(group.lock)
        group.on_full = self.make_room
        group.on_end = self._changed.notify_all

    # -- called with the lock held ---------------------------------------------------------------

    def by_generation(self, generation: Generation) -> MemTable:
        """The unflushed MemTable of that generation."""
        if generation == self.active.generation:
            return self.active
        return next(table for table in self.frozen if table.generation == generation)

    def freeze(self) -> None:
        """Close the active MemTable; its rows go to the next SSTable."""
        self.frozen.append(self.active)
        self.active = MemTable(Generation(self.active.generation + 1), self._schema, self._env)
        if self._thread is None and not self._stopping:
            self._thread = self._env.threads.start(
                self._run, name=f"weir-flush-{self._appender.site.shard}"
            )
        self._changed.notify_all()

    def make_room(self) -> None:
        """Puts wait for room: flush the active MemTable although it is not due, or nobody ever
        would (M-6)."""
        if self.active.rows and not self.frozen:
            self.freeze()

    def landed(
        self,
        generation: Generation,
        position: Position,
        *,
        puts: int,
        tokens: Sequence[tuple[str, int]] = (),
    ) -> None:
        """That many puts of the generation became durable at `position`."""
        table = self.by_generation(generation)
        table.landed(position, tokens)
        table.waiting -= puts
        self.durable = position
        if table.waiting == 0 and self.frozen:
            self._changed.notify_all()

    def unflushed_bytes(self) -> int:
        """Bytes of rows that no SSTable holds yet."""
        return self.active.nbytes + sum(table.nbytes for table in self.frozen)

    # -- called without it -----------------------------------------------------------------------

    def flush_all(self, make_durable: Callable[[], object]) -> ShardManifest:
        """Publish every row put so far and close the gap; `make_durable` sees to the log first.

        Returns a manifest that holds exactly those rows and none put later (K-3).
        """
        with self._group.lock:
            if self.active.rows:
                self.freeze()
            through = Generation(self.active.generation - 1)
        make_durable()
        self.wait_flushed(through)
        self.close_gap()
        with self._group.lock:
            return self._cuts.get(through + 1, self.manifest)

    def wait_flushed(self, through: Generation) -> None:
        """Return when every generation up to `through` is published, or raise what ended the
        writer."""
        with self._group.lock:
            while self.frozen and self.frozen[0].generation <= through:
                if self._group.failure is not None:
                    raise self._group.ended()
                self._changed.wait()
            if self._group.failure is not None:
                raise self._group.ended()

    def close_gap(self) -> None:
        """Move R to everything covered; costs nothing when it is there already (W-2, W-3)."""
        with self._publishing:
            with self._group.lock:
                behind = self._covered() > self.manifest.replay_after
            if behind:
                self._publish(None)

    def stop(self) -> None:
        """Let the thread end after what it is doing."""
        with self._group.lock:
            self._stopping = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
        self.indexes.stop()

    def rebuild(
        self,
        entries: Iterator[tuple[Generation, WalEntry]],
        shape: Callable[[pa.RecordBatch], pa.RecordBatch],
    ) -> dict[str, int]:
        """Take in what replay found, before the writer serves; returns the tokens met on the way.

        A generation that replay finds closed is published with its own R before the next begins
        (F-8): a crash in between loses nothing, and no more than one is in memory.
        """
        tokens: dict[str, int] = {}
        for generation, entry in entries:
            self.durable = Position(entry.position - 1)
            while self.active.generation < generation:
                self._publish_active()
            batches = [shape(batch) for batch in entry.batches]
            nbytes = sum(batch.nbytes for batch in batches)
            self.active.append(batches, Fill(entry.num_rows, len(batches), nbytes))
            self.active.landed(entry.position, entry.tokens)
            self._group.room.held_bytes += nbytes
            for app, version in entry.tokens:
                tokens[app] = max(version, tokens.get(app, version))
            self._counters.replayed_entries += 1
            self._counters.replayed_rows += entry.num_rows
        self.durable = self._appender.claim.fence
        return tokens

    def publish_replayed(self) -> None:
        """Publish all that replay found before the writer serves (F-14).

        Right here and not by the thread: whoever is told that an open failed has nothing to close.
        """
        if self.active.rows:
            self._publish_active()
        self.close_gap()

    def _publish_active(self) -> None:
        assert self.active.rows, "W-5: an empty generation cannot be published"
        self.frozen.append(self.active)
        self.active = MemTable(Generation(self.active.generation + 1), self._schema, self._env)
        self._flush(self.frozen[0])

    def _run(self) -> None:
        while True:
            with self._group.lock:
                while not self._ready():
                    if self._stopping or self._group.failure is not None:
                        return
                    self._changed.wait()
                table = self.frozen[0]
            try:
                self._flush(table)
            except BaseException as error:
                # Whatever it was, nobody else would hear of it, and waiters would wait for ever.
                self._group.fail(error if isinstance(error, WeirError) else internal(error))
                with self._group.lock:
                    self._changed.notify_all()
                if not isinstance(error, Exception):
                    raise
                return

    def _ready(self) -> bool:
        # W-4: the last row of the MemTable must be durable in the log first.
        return bool(self.frozen) and self.frozen[0].waiting == 0 and self._group.failure is None

    def _flush(self, table: MemTable) -> None:
        began = self._env.clock.boottime()
        entry: SsTable | None = None
        tried: list[Version] = []

        def failed(attempt: int, error: StoreError) -> None:
            self._counters.flush_failures += 1
            log.warning(
                "flush.failed shard=%s generation=%d attempt=%d reason=%s",
                self._appender.site.shard,
                table.generation,
                attempt,
                error,
            )

        def act() -> None:
            nonlocal entry
            if entry is None:
                entry = self._write(table)
            for app, version in table.tokens.items():
                self._tokens.record(app, version)
            with self._publishing:
                self._publish(table, entry, tried)

        persist(self._env, act, delay=0.1, failed=failed)
        took = self._env.clock.boottime() - began
        self._counters.flushes += 1
        self._counters.flushed_rows += table.rows
        self._counters.flush_seconds += took
        log.info(
            "flush.published shard=%s generation=%d rows=%d seconds=%.3f",
            self._appender.site.shard,
            table.generation,
            table.rows,
            took,
        )

    def _write(self, table: MemTable) -> SsTable:
        tag = f"{self._env.random.getrandbits(32):08x}"
        name = paths.sstable_name(table.generation, tag)
        info = self._lake.write_sstable(
            self._appender.site.shard,
            name,
            table.batches,
            self._schema,
            after_write=self.indexes.build,
        )
        return info.listed_as(table.generation, name)

    def _publish(
        self,
        table: MemTable | None,
        entry: SsTable | None = None,
        tried: list[Version] | None = None,
    ) -> None:
        """One manifest commit: the SSTable if any, and the R it allows; `tried`: its versions.

        `_publishing` is held.
        """
        tried = [] if tried is None else tried
        began = self._appender.ownership.moment()

        def change(current: ShardManifest) -> tuple[ShardManifest, Evidence] | None:
            if entry is not None and self._appender.manifests.published(entry, current, tried):
                return None  # an earlier attempt was applied, and failed only after that
            tried.append(Version(current.version + 1))
            with self._group.lock:
                covered = self._covered(published=table)
                self._check_not_folded(current)
            reached = Position(max(covered, current.replay_after))
            self._appender.shut(reached)
            following = replace(
                current,
                replay_after=reached,
                last_seen=Position(max(current.last_seen, reached)),
            )
            if entry is not None:
                following = replace(
                    following,
                    sstables=(*current.sstables, entry),
                    current_generation=Generation(entry.generation + 1),
                )
            return following, Evidence(covered=covered)

        appender = self._appender
        try:
            committed = appender.manifests.update(change, epoch=appender.epoch)
        except FencedError as fenced:
            raise fenced.at(appender.next_position) from None
        self._appender.ownership.proven(began)
        with self._group.lock:
            # Readers switch from the MemTable to the SSTable in one step (M-1).
            self.manifest = committed
            self._cuts[committed.current_generation] = committed
            self._cuts.pop(committed.current_generation - CUTS_KEPT, None)
            if table is not None:
                assert self.frozen[0] is table, "W-5: published out of order"
                self.frozen.popleft()
                self._group.room.release(table.nbytes)
                self.indexes.published(table.level)
            self._changed.notify_all()

    def _check_not_folded(self, current: ShardManifest) -> None:
        """Stop when somebody folded entries whose rows are still in our memory (L-6). Lock held.

        Publishing them again would double the rows of a table without a key.
        """
        first = next(
            (t.first_position for t in (*self.frozen, self.active) if t.first_position), None
        )
        if first is not None and current.replay_after >= first:
            raise CommitConflict(
                f"{self._appender.site}: a compaction folded the log up to position"
                f" {current.replay_after} although this writer held rows from {first} on in memory."
                " Every row is durable; open a new writer, and compact with fold_wal only tables"
                " whose writers are WAL-only"
            )

    def _covered(self, published: MemTable | None = None) -> Position:
        """The last position before the first entry whose rows would be nowhere else (W-1). Lock
        held."""
        for table in (*self.frozen, self.active):
            if table is published:
                continue
            if table.first_position is not None:
                return Position(table.first_position - 1)
        return self.durable

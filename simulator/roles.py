"""The processes of a simulated history, each with the real code of weir inside."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from simulator.env import start
from simulator.outcomes import handed_back, told_of_put
from simulator.scenarios import COLUMNS, SHARD, TABLE, Role, Run
from simulator.scheduler import Actor
from simulator.truth import BatchId, Put, Row, Violation
from weir.config import WriterConfig
from weir.errors import SnapshotExpired, StoreError, UnknownOutcome, WeirError
from weir.format.paths import log_folder
from weir.format.sharding import Unsharded
from weir.log.manifests import Manifests
from weir.log.wal_store import make_folder
from weir.making import open as open_table
from weir.read.scan import Scan
from weir.records.table import Route, TableRecord, TableRecords
from weir.routing.core import Core
from weir.routing.shards import Shard
from weir.shard.ack import Ack
from weir.shard.writer import ShardWriter
from weir.store.open import open_store
from weir.table import Table

KEYS = 6
T = TypeVar("T")

FIRST_FOLDER = log_folder(SHARD, SHARD)
"""Where logs begin in the WAL store of a table that is made with one."""


class Session:
    """One writer from open to close, its puts, and the answers it got."""

    def __init__(
        self, run: Run, actor: Actor, role: Role, number: int, table: Table | None = None
    ) -> None:
        self.run = run
        self.table = table
        """The handle it opens its writer through; None: one of its own."""
        self.actor = actor
        self.role = role
        self.number = number
        self.rng = random.Random(f"session/{run.plan.seed}/{actor.name}/{number}")
        self.counter = 0
        self.pending: list[tuple[Put, Ack]] = []
        self.accepted: list[Put] = []
        self.made: list[Put] = []
        self.told: set[BatchId] = set()
        """Puts that an error named."""
        self.ended = False
        self.writer: ShardWriter | None = None

    def live(self) -> None:
        """Open, work in one or more threads, close."""
        if not self.open():
            return
        threads = [start(self.actor, self._work, f"put{i}") for i in range(self.role.threads - 1)]
        self._work()
        if self.rng.random() < 0.7:
            for thread in threads:
                thread.join()
        self._close()
        for thread in threads:
            thread.join()
        self._settle(closed=True)
        self._check_threads()

    def leave(self) -> None:
        """Close, and settle everything that was pending."""
        self._close()
        self._settle(closed=True)

    def work(self, ops: int) -> None:
        """That many calls, while the writer is open."""
        for _ in range(ops):
            if not self.ended:
                self._op()

    def open(self) -> bool:
        """Open the writer; False when it could not be."""
        run, judge = self.run, self.run.judge
        changes: dict[str, Any] = {"fence_ttl": run.plan.fence_ttl}
        if run.plan.is_mixed:
            changes["enable_memtable"] = self.rng.random() < 0.5
        elif run.plan.wal_only:
            changes["enable_memtable"] = False
        config = WriterConfig(**{**self.role.config, **changes})
        run.note(self.actor, f"open session {self.number}")
        try:
            self.writer = self.call(lambda: self.open_writer(config))
        except WeirError as error:
            run.note(self.actor, f"open failed: {type(error).__name__}")
            judge.failed(SHARD, error, None, 0)
            return False
        judge.opened(SHARD, self.writer.epoch)
        run.note(self.actor, f"opened epoch {self.writer.epoch}")
        return True

    def open_writer(self, config: WriterConfig) -> ShardWriter:
        """The writer of this session."""
        wanted = self._wanted_store()
        if self.table is None:
            return open_shard(self.run, self.actor, config, wanted)
        return Shard(self.table.core, SHARD, None).writer(config)

    def call(self, act: Callable[[], T]) -> T:
        """One call of a client; sessions that are interrupted override it."""
        return act()

    def _wanted_store(self) -> str | None:
        """Where this session wants the log; None: where it is."""
        if not self.run.plan.moves:
            return None
        return self.rng.choice(self.run.plan.places)

    def _work(self) -> None:
        self.work(self.role.ops)

    def _op(self) -> None:
        assert self.writer is not None, "opened first"
        roll = self.rng.random()
        memtable = self.writer.config.enable_memtable
        try:
            if roll < 0.72:
                self._put()
            elif roll < 0.8:
                self._flush_wal()
            elif roll < 0.9 and memtable:
                self.call(self.writer.flush)
                self.run.note(self.actor, "flushed")
            elif memtable and self.role.threads == 1 and self.run.judges_own_reads:
                self._read_own()
        except SnapshotExpired:
            self.run.note(self.actor, "own read overtaken")  # by a collection (G-12)
        except WeirError as error:
            self._failed(error, None)

    def _put(self) -> None:
        put, data = self.make()
        assert self.writer is not None, "opened first"
        wait = self.rng.choice((None, None, True, False))
        timeout = self.rng.choice((None, None, None, 0.0, 0.2, 5.0))
        try:
            ack = self.call(partial(self.writer.put, data, wait=wait, timeout=timeout))
        except TimeoutError:
            self.accepted.append(put)  # the put continues, and `close` answers for it
            return
        except WeirError as error:
            self._failed(error, put)
            return
        self.accepted.append(put)
        if ack.done:
            self._told(put, ack)
        else:
            self.pending.append((put, ack))
            self._watch(ack)
            if self.rng.random() < 0.3:
                self._wait(put, ack)

    def _watch(self, ack: Ack) -> None:
        """Called for a put that is under way."""

    def _wait(self, put: Put, ack: Ack) -> None:
        try:
            self.call(ack.wait)
        except WeirError as error:
            self._failed(error, put)
            return
        self._told(put, ack)

    def _told(self, put: Put, ack: Ack) -> None:
        try:
            position = ack.wait()
        except WeirError as error:
            self._failed(error, put)
            return
        self.run.note(self.actor, f"acked {put.id} at {position}")
        self.run.judge.acked(SHARD, put, position)

    def _flush_wal(self) -> None:
        assert self.writer is not None, "opened first"
        before = list(self.accepted)
        self.call(self.writer.flush_wal)
        for put in before:
            if put.id not in self.run.judge.seen:
                raise Violation("D", f"flush_wal returned, and batch {put.id} is not in the log")

    def _read_own(self) -> None:
        """M-1: this writer's reads show every accepted put, the newest row of each key."""
        writer = self.writer
        assert writer is not None, "opened first"
        found = table_rows(self.call(lambda: writer.scan().read_all()))
        mine = self.accepted
        if not self.run.plan.keyed:
            rows = set(found)
            missing = [put.id for put in mine if not rows.issuperset(put.rows)]
            if missing or len(rows) != len(found):
                raise Violation("R", f"own scan misses {missing} or shows a row twice (M-1)")
            return
        newest = {row[0]: row for put in mine for row in put.rows}
        have = {row[0]: row for row in found}
        for key, row in newest.items():
            got = have.get(key)
            if row[5] and got is not None and (got[1], got[2]) == (row[1], row[2]):
                raise Violation("R", f"own scan shows the deleted key {key} (M-1)")
            if not row[5] and got != row and not self._is_newer(key, got):
                raise Violation("R", f"own scan of key {key}: put {row}, got {got} (M-1)")

    def _is_newer(self, key: int, got: Row | None) -> bool:
        """True for a later put of our own, and for what a newer owner, which has fenced this writer
        without its knowledge, made of the key: another row, or none."""
        if got is not None and got[1] == self.number:
            return True
        assert self.writer is not None, "opened first"
        log, ours = self.run.judge.truth(SHARD).log, self.writer.epoch
        newer = [row for entry in log.values() if entry.epoch > ours for row in entry.rows]
        return any(row[0] == key and row[5] for row in newer) if got is None else got in newer

    def _failed(self, error: WeirError, put: Put | None) -> None:
        epoch = self.writer.epoch if self.writer is not None else 0
        self.run.note(self.actor, f"told {type(error).__name__} for {put.id if put else 'a call'}")
        self.run.judge.failed(SHARD, error, put, epoch)
        self._hear(error, put)
        if error.kind in {"fenced", "closed"} or isinstance(error, UnknownOutcome):
            self.ended = True

    def _hear(self, error: WeirError, put: Put | None) -> None:
        """A put's error names its own rows, a flush's or close's those no caller awaits (F-16)."""
        judge = self.run.judge
        if put is None:
            self.told |= handed_back(judge, error, self.made)
        else:
            self.told |= told_of_put(judge, error, put, [put])

    def _close(self) -> None:
        assert self.writer is not None, "opened first"
        before = list(self.accepted)
        try:
            self.call(self.writer.close)
        except WeirError as error:
            self.run.note(self.actor, f"close failed: {type(error).__name__}")
            self.run.judge.failed(SHARD, error, None, self.writer.epoch)
            self._hear(error, None)
            self.ended = True
            return
        self.run.note(self.actor, "closed")
        # F-16: what a caller waits for, in another thread, is reported there and not by close.
        waited = {put.id for put, ack in self.pending if ack.done and ack.error is not None}
        for put in before:
            if put.id not in self.run.judge.seen and put.id not in self.told | waited:
                raise Violation("D", f"close returned, and batch {put.id} is not in the log (M-8)")

    def _settle(self, *, closed: bool) -> None:
        for put, ack in self.pending:
            if ack.done:
                if put.acked_at is None:
                    self._told(put, ack)
            elif closed:
                raise Violation(
                    "D", f"the writer is closed, batch {put.id} was accepted and is in limbo (M-8)"
                )
        self.pending.clear()
        lost = [
            put.id
            for put in self.accepted
            if put.id not in self.told and put.id not in self.run.judge.seen
        ]
        if lost:
            raise Violation("D", f"{lost} were accepted, are nowhere, and nobody was told (F-16)")

    def _check_threads(self) -> None:
        # Helpers of a map are kept between maps; one whose caller was interrupted ends with its
        # request.
        left = [
            task.name
            for task in self.run.scheduler.live
            if task.actor is self.actor
            and task is not self.run.scheduler.current
            and "/map" not in task.name
        ]
        if left:
            raise Violation("P", f"closed, and threads are left: {left}")

    def make(self) -> tuple[Put, pa.RecordBatch]:
        """A batch whose rows identify it."""
        self.counter += 1
        batch, size = self.counter, self.rng.randint(1, 4)
        keyed = self.run.plan.keyed
        rows: list[Row] = []
        for index in range(size):
            key = self.rng.randrange(KEYS) if keyed else self.number * 1000 + batch
            deleted = keyed and self.rng.random() < 0.2
            rows.append((key, self.number, batch, index, size, deleted))
        put = self.run.judge.putting((self.number, batch), rows)
        self.made.append(put)
        return put, to_batch(rows)


def open_shard(
    run: Run, actor: Actor, config: WriterConfig, wal_uri: str | None = None
) -> ShardWriter:
    """A writer of the shard. Where logs move, or native writers may follow, it is opened as users
    do: with a place for the log, and within the bounds of the table."""
    if not run.plan.moves and not run.plan.is_mixed:
        return ShardWriter.open(
            run.site(actor), schema=run.schema, lake=run.lake(actor), config=config
        )
    if wal_uri is not None:
        run.note(actor, f"wants the log in {wal_uri}")
    table = open_table(TABLE, wal_uri=wal_uri, env=actor.env)
    return Shard(table.core, SHARD, None).writer(config)


def to_batch(rows: list[Row]) -> pa.RecordBatch:
    """Rows as a client passes them; deletes are marked rows, so they too identify their put."""
    columns = [pa.array([row[i] for row in rows], pa.int64()) for i in range(5)]
    columns.append(pa.array([row[5] for row in rows]))
    return pa.RecordBatch.from_arrays(columns, names=[*COLUMNS, "_tombstone"])


def table_rows(table: pa.Table) -> list[Row]:
    """Rows of a view."""
    columns = [table.column(name).to_pylist() for name in COLUMNS]
    return [(*row, False) for row in zip(*columns, strict=True)]


def writer(run: Run, actor: Actor, role: Role) -> None:
    """Opens, puts, flushes, closes, and again."""
    for _ in range(role.sessions):
        Session(run, actor, role, run.next_session()).live()


def reader(run: Run, actor: Actor, role: Role) -> None:
    """Reads continuously through one handle; each view must be a prefix, and never go back."""
    core = core_of(run, actor)
    least = 0
    for _ in range(role.ops):
        truth = run.judge.truth(SHARD)
        low, mixtures = truth.acked, run.judge.mixtures
        base = run.judge.base_version
        try:
            rows = table_rows(Scan(core).to_table())
        except (StoreError, SnapshotExpired) as error:
            run.note(actor, f"read failed: {type(error).__name__}")
            continue
        except WeirError as error:
            run.judge.failed(SHARD, error, None, 0)
            continue
        if run.judge.is_mixed or run.judge.mixtures != mixtures:
            least = 0  # before or after a restore, or a mixture
            continue
        lowest, highest = run.judge.viewed(
            SHARD, rows, low=low, high=truth.tip, base=(base, run.judge.base_version)
        )
        if highest < least:
            raise Violation("R", f"a view through {least}, then one through {highest}")
        least = lowest
        run.note(actor, f"read {len(rows)} rows, a prefix through {highest}")
        actor.env.clock.sleep(0.05)


def record_of(run: Run) -> TableRecord:
    """The table's record."""
    # What a generation may hold where native writers replay it (F-15).
    edge = run.plan.edge
    bounds: dict[str, Any] = edge if run.plan.is_mixed else edge.get("defaults", {})
    return TableRecord(
        table_id=SHARD,
        primary_key=run.schema.primary_key,
        sharding=Unsharded(),
        routing=(Route(SHARD, None, 0),),
        routing_version=1,
        spec=0,
        wal_uri=run.plan.wal_uri,
        wal_folder=None if run.plan.wal_uri is None else FIRST_FOLDER,
        settings=WriterConfig(
            fence_ttl=run.plan.fence_ttl,
            enable_memtable=not run.plan.wal_only,
            stats_log_interval=0,
            **bounds,
        ).to_record(),
        probe={},
        created=0.0,
    )


def write_record(run: Run, actor: Actor) -> None:
    """Make the table one that can be opened."""
    if run.plan.wal_uri is not None:
        make_folder(open_store(run.plan.wal_uri, env=actor.env), FIRST_FOLDER, TABLE)
    TableRecords(run.store(actor)).create(record_of(run))


def core_of(run: Run, actor: Actor) -> Core:
    """The table as that process holds it open."""
    site = run.site(actor)
    return Core(
        uri=site.store.uri,
        storage_options={},
        store=site.store,
        wal=site.wal,
        lake=run.lake(actor),
        env=actor.env,
        record=record_of(run),
    )


def final(run: Run, actor: Actor) -> None:
    """On a healthy store: open, put, flush, close, and read everything."""
    role = Role("final", sessions=1, ops=0)
    session = Session(run, actor, role, run.next_session())
    site = run.site(actor)
    config = WriterConfig(fence_ttl=run.plan.fence_ttl) if run.plan.is_story else WriterConfig()
    opened = open_shard(run, actor, config)
    run.judge.opened(SHARD, opened.epoch)
    put, data = session.make()
    ack = opened.put(data)
    run.judge.acked(SHARD, put, ack.position)
    check_final_view(run, actor)
    opened.close()
    manifest = Manifests(site).require()
    if (
        manifest.replay_after != manifest.last_seen
        or manifest.last_seen != run.judge.truth(SHARD).tip
    ):
        raise Violation("L", f"a clean close leaves a gap: {manifest} (W-2)")
    check_final_view(run, actor)


def check_final_view(run: Run, actor: Actor) -> None:
    """Check that the table shows the whole log."""
    tip = run.judge.truth(SHARD).tip
    rows = table_rows(Scan(core_of(run, actor)).to_table())
    run.judge.viewed(SHARD, rows, low=tip, high=tip)


ROLES = {"writer": writer, "fencer": writer, "reader": reader}

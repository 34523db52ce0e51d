"""A writer whose own threads put, flush, look up, scan and search at the same time (M-1).

The judge demands that a read shows one moment: every put that had returned when it began, or a
later one of the same key; of two puts of a key that did not overlap, never the older; whole
batches; every key that was there, and none twice. If files are collected during a read, it must
start over, and never report damage (G-12).
"""

from __future__ import annotations

import random

import pyarrow as pa

from simulator.model_lake import ModelLake
from simulator.roles import KEYS, Session, table_rows, to_batch
from simulator.scenarios import SHARD, Plan, Role, Run
from simulator.scheduler import Actor
from simulator.truth import BatchId, Put, Row, State, Violation, identity
from simulator.world import Faults
from weir.config import WriterConfig
from weir.errors import SnapshotExpired, WeirError
from weir.shard.writer import ShardWriter

VECTOR = "v"
ALL_ROWS = 10_000


def draw_own_reads(plan: Plan, rng: random.Random) -> None:
    """Tiny MemTables, so that reads meet flushes; rows with a vector, to be searched."""
    plan.edge = {"column": "vectors"}
    plan.wal_only = False
    if rng.random() < 0.5:  # no other process, no faults: only its own threads
        plan.faults = Faults().record()
        plan.roles = [role for role in plan.roles if role.kind == "own-reader"][:1] or plan.roles
    for role in plan.roles:
        if role.kind == "own-reader":
            role.threads = rng.choice((2, 2, 3))
            role.ops = rng.randint(4, 10)
            role.config["enable_memtable"] = True
            role.config["max_memtable_rows"] = rng.choice((2, 2, 5, 100_000))
            role.config["max_memtable_size"] = 256 << 20


class OwnReader(Session):
    """One writer, read by the threads that write."""

    def __init__(self, run: Run, actor: Actor, role: Role, number: int) -> None:
        super().__init__(run, actor, role, number)
        self.before: dict[BatchId, frozenset[BatchId]] = {}
        """For each put, those that had returned when it began."""

    def open_writer(self, config: WriterConfig) -> ShardWriter:
        """With a lake of its own."""
        site = self.run.site(self.actor)
        lake = ModelLake(site.store, self.run.schema)
        return ShardWriter.open(site, schema=self.run.schema, lake=lake, config=config)

    def make(self) -> tuple[Put, pa.RecordBatch]:
        """A batch with vectors; puts accepted before it are older."""
        put, _ = super().make()
        self.before[put.id] = self._accepted()
        vectors = pa.array([[float(row[0])] for row in put.rows], pa.list_(pa.float32(), 1))
        return put, to_batch(put.rows).append_column(VECTOR, vectors)

    def _accepted(self) -> frozenset[BatchId]:
        return frozenset(put.id for put in self.accepted)

    def _op(self) -> None:
        roll = self.rng.random()
        if roll < 0.5:
            super()._op()
            return
        try:
            if roll < 0.65 and self.writer is not None:
                self.writer.flush()  # concurrent with the background's flushes
            else:
                self._read()
        except SnapshotExpired:
            self.run.note(self.actor, "own read overtaken")
        except WeirError as error:
            self._failed(error, None)

    def _read_own(self) -> None:
        self._read()

    def _read(self) -> None:
        writer = self.writer
        assert writer is not None, "opened first"
        known = self._accepted()
        kind = self.rng.choice(
            ("scan", "search", "get") if self.run.plan.keyed else ("scan", "search")
        )
        keys = sorted(self.rng.sample(range(KEYS), 3)) if kind == "get" else None
        if kind == "scan":
            found = writer.scan().read_all()
        elif kind == "search":
            found = writer.search(VECTOR, [0.0], k=ALL_ROWS, exact=True)
        else:
            found = writer.get(keys or [])
        self.run.judge.counts[f"own {kind}"] += 1
        OwnView(self, known).check(kind, table_rows(found), keys)


class OwnView:
    """What one read may show, given what had been accepted when it began."""

    def __init__(self, session: OwnReader, known: frozenset[BatchId]) -> None:
        assert session.writer is not None, "it reads"
        self.session = session
        self.known = known
        self.judge = session.run.judge
        truth = self.judge.truth(SHARD)
        self.keyed = session.run.plan.keyed
        claim = session.writer._appender.claim  # noqa: SLF001  where its own rows begin
        self.old: State = truth.state(claim.fence)
        self.fenced = truth.manifests[truth.last_version].writer_epoch > session.writer.epoch

    def check(self, kind: str, rows: list[Row], keys: list[int] | None) -> None:
        """Raise when no moment between the start of the read and now looks like this."""
        found = {identity(row, keyed=self.keyed): row for row in rows}
        if len(found) != len(rows):
            raise Violation("R", f"own {kind} shows a row or key twice (M-1)")
        if self.fenced:
            return  # it may show what its successor put, deleted or compacted
        if not self.keyed:
            self._check_appended(kind, found)
            return
        for key in range(KEYS) if keys is None else keys:
            self._check_key(kind, key, found.get((key,)))

    def _check_appended(self, kind: str, found: State) -> None:
        made = {identity(row, keyed=False) for put in self.session.made for row in put.rows}
        strange = found.keys() - made - self.old.keys()
        if strange or self.old.keys() - found.keys():
            raise Violation("R", f"own {kind} shows {strange} or misses old rows (M-1)")
        for put in self.session.made:
            seen = sum(identity(row, keyed=False) in found for row in put.rows)
            if seen != len(put.rows) and (seen or put.id in self.known):
                raise Violation("R", f"own {kind} shows {seen} rows of {put.id}, {put.rows} (M-1)")

    def _check_key(self, kind: str, key: int, got: Row | None) -> None:
        allowed: list[Row | None] = []
        of_key = [put for put in self.session.made if any(row[0] == key for row in put.rows)]
        finished = [put for put in of_key if put.id in self.known]
        for put in of_key:
            if not any(put.id in self.session.before[later.id] for later in finished):
                last = [row for row in put.rows if row[0] == key][-1]
                allowed.append(None if last[5] else last)
        if not finished:
            allowed.append(self.old.get((key,)))
        if got not in allowed:
            raise Violation("R", f"own {kind} of key {key} shows {got}, not of {allowed} (M-1)")


def own_reader(run: Run, actor: Actor, role: Role) -> None:
    """Opens, puts and reads in several threads, closes, and again."""
    for _ in range(role.sessions):
        OwnReader(run, actor, role, run.next_session()).live()


OWN_READERS = {"own-reader": own_reader}

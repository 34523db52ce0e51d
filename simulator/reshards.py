"""A table whose routing changes under its writers, in a simulated history."""

from __future__ import annotations

import random
from typing import Any

from msgspec.structs import replace

from simulator.keepers import ModelRunner
from simulator.roles import KEYS, record_of, table_rows, to_batch
from simulator.scenarios import SHARD, TABLE, Role, Run
from simulator.scheduler import Actor
from simulator.truth import Put, Row, Violation, index_rows
from simulator.views import complete, lows, tips, viewed_table
from weir.config import WriterConfig
from weir.errors import SnapshotExpired, StoreError, WeirError
from weir.format.sharding import Bucket, Identity, Sharding, Unsharded, values_of
from weir.making import create_shards
from weir.making import open as open_table
from weir.read.scan import Scan
from weir.records.resharding import read_resharding
from weir.records.table import TableRecords
from weir.routing.core import routes_of
from weir.routing.writer import TableWriter
from weir.table import Table
from weir.upkeep.checkpoint import find
from weir.upkeep.compact.run import compact
from weir.upkeep.reshard import ReshardReport, reshard

CHANGES_MAX = 3


def make_sharded(run: Run, actor: Actor) -> None:
    """Make the table: its shards, then its record."""
    sharding = _draw(random.Random(f"first/{run.plan.seed}"), keyed=run.plan.keyed)
    if isinstance(sharding, Identity):
        sharding = Unsharded()
    store = run.store(actor)
    routes = routes_of(sharding, values_of(sharding), 1, 0)
    for route in routes:
        create_shards(store, store, actor.env, sharding, [route])
    TableRecords(store).create(replace(record_of(run), sharding=sharding, routing=routes))


def _draw(rng: random.Random, *, keyed: bool) -> Sharding:
    some: list[Sharding] = [Unsharded(), Bucket("k", 2), Bucket("k", 3)]
    return rng.choice([*some, Identity("k")] if keyed else some)


class TableSession:
    """One `TableWriter` from open to close; a batch holds rows of one key, so of one shard."""

    def __init__(self, run: Run, actor: Actor, role: Role) -> None:
        self.run, self.actor, self.role = run, actor, role
        self.number = run.next_session()
        self.rng = random.Random(f"table/{run.plan.seed}/{actor.name}/{self.number}")
        self.counter = 0
        self.accepted: list[Put] = []

    def live(self) -> None:
        """Open, put, flush, close."""
        values = {**self.role.config, "fence_ttl": self.run.plan.fence_ttl}
        if self.run.plan.wal_only:
            values["enable_memtable"] = False
        try:
            table = open_table(TABLE, env=self.actor.env)
            with table.writer(WriterConfig(**values)) as writer:
                self._work(writer)
                accepted = list(self.accepted)
            self._must_be_in(accepted, "close")
        except WeirError as error:
            self.run.note(self.actor, f"session ended: {type(error).__name__}")
            self.run.judge.failed(SHARD, error, None, 0)

    def _work(self, writer: TableWriter) -> None:
        for _ in range(self.role.ops):
            roll = self.rng.random()
            if roll < 0.8:
                self._put(writer)
                continue
            try:
                if roll < 0.9 and not self.run.plan.wal_only:
                    writer.flush()
                else:
                    accepted = list(self.accepted)
                    writer.flush_wal()
                    self._must_be_in(accepted, "flush_wal")
            except WeirError as error:
                self._told(error)
                self.run.judge.failed(SHARD, error, None, 0)

    def _told(self, error: WeirError) -> None:
        """Rows an error hands back are the client's again: no later success covers them."""
        back = getattr(error, "unacknowledged", ())
        parts = back.values() if isinstance(back, dict) else [back]
        batches = [batch for part in parts for batch in part]
        ids = {
            ident
            for batch in batches
            for ident in zip(
                batch.column("w").to_pylist(), batch.column("c").to_pylist(), strict=True
            )
        }
        self.accepted = [put for put in self.accepted if put.id not in ids]

    def _put(self, writer: TableWriter) -> None:
        run = self.run
        put = self._make()
        try:
            writer.put(to_batch(put.rows))
        except WeirError as error:
            run.note(self.actor, f"told {type(error).__name__} for {put.id}")
            self._told(error)
            run.judge.failed(SHARD, error, put, 0)
            return
        if not self.role.config["durable_write"]:
            self.accepted.append(put)
            return
        self._must_be_in([put], "put")
        shard = run.judge.where[put.id]
        run.note(self.actor, f"acked {put.id} in {str(shard)[:4]}")
        run.judge.acked(shard, put, run.judge.seen[put.id])

    def _must_be_in(self, puts: list[Put], call: str) -> None:
        for put in puts:
            if put.id not in self.run.judge.seen:
                raise Violation("D", f"{call} returned, and batch {put.id} is in no log")

    def _make(self) -> Put:
        self.counter += 1
        size, keyed = self.rng.randint(1, 3), self.run.plan.keyed
        key = self.rng.randrange(KEYS) if keyed else self.number * 1000 + self.counter
        rows: list[Row] = [
            (key, self.number, self.counter, i, size, keyed and self.rng.random() < 0.2)
            for i in range(size)
        ]
        return self.run.judge.putting((self.number, self.counter), rows)


def table_writer(run: Run, actor: Actor, role: Role) -> None:
    """Puts through the routing, whatever it is at the moment."""
    for _ in range(role.sessions):
        TableSession(run, actor, role).live()


def table_reader(run: Run, actor: Actor, role: Role) -> None:
    """Reads continuously through one handle."""
    table: Table | None = None
    for _ in range(role.ops):
        low = lows(run.judge)
        try:
            table = table or open_table(TABLE, env=actor.env)
            rows = table_rows(Scan(table.core).to_table())
        except (StoreError, SnapshotExpired) as error:
            run.note(actor, f"read failed: {type(error).__name__}")
            continue
        except WeirError as error:
            run.judge.failed(SHARD, error, None, 0)
            continue
        number = viewed_table(run.judge, rows, low)
        run.note(actor, f"read {len(rows)} rows under routing {number}")
        actor.env.clock.sleep(0.05)


def resharder(run: Run, actor: Actor, role: Role) -> None:
    """Changes the routing, or finishes a change that another process began."""
    rng = random.Random(f"resharder/{run.plan.seed}/{actor.name}")
    for _ in range(min(role.ops, CHANGES_MAX)):
        try:
            table = open_table(TABLE, env=actor.env)
            begun = read_resharding(table.core.store)
            sharding = _draw(rng, keyed=run.plan.keyed)
            if begun is not None and begun.is_open:
                sharding = begun.sharding
            run.note(actor, f"reshards to {sharding}")
            report = reshard(table.core, sharding, compact=rng.random() < 0.3, engine=ModelRunner())
            run.note(actor, f"resharded, routing {report.routing_version}")
            run.judge.counts["reshards"] += bool(report.sealed)
            _check_way_back(run, table, report)
        except WeirError as error:
            run.note(actor, f"resharding failed: {type(error).__name__}")
            run.judge.failed(SHARD, error, None, 0)
        actor.env.clock.sleep(rng.choice((0.1, 5.0, 60.0)))


def _check_way_back(run: Run, table: Table, report: ReshardReport) -> None:
    """K: the checkpoint of a reshard is the table when all old shards were sealed."""
    if report.checkpoint is None:
        return
    pinned = find(table.core, report.checkpoint)
    try:
        rows = table_rows(Scan(table.core, pinned=pinned).to_table())
    except StoreError:
        return
    found = index_rows(rows, keyed=run.plan.keyed)
    if any(isinstance(record.sharding, Identity) for record in run.judge.routings):
        viewed_table(run.judge, rows, {})  # a shard may be created while the others are sealed
        return
    number = next(
        i
        for i, record in enumerate(run.judge.routings)
        if record.routing_version == pinned.routing_version
    )
    if found != complete(run.judge, number + 1):
        raise Violation("K", "the way back from a change of routing is not what was sealed")


def final_of_reshards(run: Run, actor: Actor) -> None:
    """On a healthy store, finish a reshard that was begun, and check that every row is there."""
    table = open_table(TABLE, env=actor.env)
    begun = read_resharding(table.core.store)
    if begun is not None and begun.is_open:
        actor.env.clock.sleep(3600.0)  # a dead compactor's claim expires
        reshard(table.core, begun.sharding, compact=False, engine=ModelRunner())
    _check(run, actor)
    role = Role("final", ops=6, config={"durable_write": True})
    TableSession(run, actor, role).live()
    _check(run, actor)
    compact(open_table(TABLE, env=actor.env).core, engine=ModelRunner(), lease=0)
    _check(run, actor)


def _check(run: Run, actor: Actor) -> None:
    rows = table_rows(Scan(open_table(TABLE, env=actor.env).core).to_table())
    viewed_table(run.judge, rows, tips(run.judge))


RESHARDERS: dict[str, Any] = {
    "table-reader": table_reader,
    "table-writer": table_writer,
    "resharder": resharder,
}

"""A table where each writer has a shard of its own (`weir.PerWriter`), in a simulated history.

Writers come, die, sleep until they are sealed, and go on elsewhere; an application puts its batches
once; nobody may reshard. Every batch is in one log only, whole, and readers see a prefix of each
log (C-18).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from msgspec.structs import replace

from simulator.keepers import ModelRunner
from simulator.oracles import Judge
from simulator.reshards import TableSession
from simulator.roles import record_of, table_rows, to_batch
from simulator.scenarios import SHARD, TABLE, Plan, Role, Run
from simulator.scheduler import Actor
from simulator.truth import Row, Violation, index_rows
from simulator.views import fits, lows, tips
from weir.config import WriterConfig
from weir.errors import InvalidInput, SnapshotExpired, StoreError, WeirError
from weir.format.sharding import Bucket, PerWriter
from weir.making import open as open_table
from weir.read.scan import Scan
from weir.records.table import TableRecords
from weir.table import Table
from weir.upkeep.compact.run import compact
from weir.upkeep.gc.collect import collect
from weir.upkeep.reshard import reshard

APP: Final = 3_000_000
"""Session number of the application's rows."""


def draw_appenders(plan: Plan, rng: random.Random) -> None:
    """Append-only; writers are taken for dead at once, soon, or never."""
    plan.is_story, plan.keyed = True, False
    plan.edge = {"silent_after": rng.choice((0.0, 0.5, 30.0, 3600.0))}


def make_per_writer(run: Run, actor: Actor) -> None:
    """Make the table, which has no shard yet."""
    sharding = PerWriter(silent_after=run.plan.edge["silent_after"])
    record = replace(record_of(run), sharding=sharding, routing=())
    TableRecords(run.store(actor)).create(record)


def appender(run: Run, actor: Actor, role: Role) -> None:
    """Appends in shards of its own."""
    rng = random.Random(f"appender/{run.plan.seed}/{actor.name}")
    for _ in range(role.sessions):
        TableSession(run, actor, role).live()
        actor.env.clock.sleep(rng.choice((0.0, 0.1, 5.0)))


def application(run: Run, actor: Actor, role: Role) -> None:
    """Puts each batch until it is in, every time with another writer; two of them take turns."""
    values = {**role.config, "fence_ttl": run.plan.fence_ttl}
    if run.plan.wal_only:
        values["enable_memtable"] = False
    for _ in range(role.ops):
        version = run.stream_offset + 1
        rows: list[Row] = [(APP + version, APP, version, i, 2, False) for i in range(2)]
        put = run.judge.putting((APP, version), rows)
        try:
            with open_table(TABLE, env=actor.env).writer(WriterConfig(**values)) as writer:
                batch = pa.Table.from_batches([to_batch(rows)])
                fresh = writer.put_once(batch, app="app", version=version)
                run.note(actor, f"batch {version} is {'put' if fresh else 'known'}")
                if put.id not in run.judge.seen:
                    raise Violation("D", f"batch {version} is said to be in, and is not (P-6)")
                run.judge.acked(run.judge.where[put.id], put, run.judge.seen[put.id])
                run.stream_offset = max(run.stream_offset, version)
                run.judge.counts["once"] += 1
        except WeirError as error:
            run.note(actor, f"told {type(error).__name__} for batch {version}")
            run.judge.failed(SHARD, error, None, 0)
        actor.env.clock.sleep(0.05)


def append_reader(run: Run, actor: Actor, role: Role) -> None:
    """Reads continuously through one handle, and is refused another routing."""
    rng = random.Random(f"append-reader/{run.plan.seed}/{actor.name}")
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
        viewed_own(run.judge, rows, low)
        run.note(actor, f"read {len(rows)} rows")
        if rng.random() < 0.3:
            _require_refused(run, table)
        actor.env.clock.sleep(0.05)


def _require_refused(run: Run, table: Table) -> None:
    try:
        reshard(table.core, Bucket("k", 2), compact=False, engine=ModelRunner())
    except InvalidInput:
        run.judge.counts["reshards refused"] += 1
    except StoreError:
        return
    else:
        raise Violation("S", "a table whose writers have shards of their own was resharded (C-18)")


def viewed_own(judge: Judge, rows: list[Row], low: Mapping[UUID, int]) -> None:
    """Raise unless the rows are a prefix of every log, and not older than what was acknowledged."""
    judge.counts["views"] += 1
    found = index_rows(rows, keyed=False)
    unknown = [row for row in found.values() if (row[1], row[2]) not in judge.where]
    if unknown:
        raise Violation("R", f"rows that are in no log: {unknown[:4]}")
    for shard in list(judge.shards):
        mine = {at: r for at, r in found.items() if judge.where[r[1], r[2]] == shard}
        if not fits(judge, shard, {}, mine, low.get(shard, 0)):
            least = low.get(shard, 0)
            raise Violation("R", f"shard {str(shard)[:4]} shows {mine}, no prefix from {least}")


def final_of_appenders(run: Run, actor: Actor) -> None:
    """On a healthy store: every row is there, also when all silent shards are folded away."""
    _check(run, actor)
    role = Role("final", ops=6, config={"durable_write": True})
    TableSession(run, actor, role).live()
    _check(run, actor)
    actor.env.clock.sleep(2 * 3600.0)  # every writer is silent, and every claim has expired
    for _ in range(2):
        compact(open_table(TABLE, env=actor.env).core, engine=ModelRunner(), lease=0)
        _check(run, actor)
        _collect(run, actor)
        _check(run, actor)
    table = open_table(TABLE, env=actor.env)
    base = {*table_rows(Scan(table.core, freshness="base").to_table())}
    left = [row for row in table_rows(Scan(table.core).to_table()) if row not in base]
    # Not the shard of an application, which is never sealed, nor a put of unknown outcome that came
    # to the log after its writer had left: their next writer has the rows.
    if any(row[1] != APP and run.judge.puts[row[1], row[2]].acked_at for row in left):
        raise Violation("P", f"rows of silent writers are not in the base: {left[:4]} (C-18)")


def _collect(run: Run, actor: Actor) -> None:
    core = open_table(TABLE, env=actor.env).core
    report = collect(
        core, min_age=0.0, fence_retention=2 * run.plan.fence_ttl, keep_first_entries=False
    )
    if report.errors:
        raise Violation("T", f"collection of a healthy table: {report.errors}")


def _check(run: Run, actor: Actor) -> None:
    rows = table_rows(Scan(open_table(TABLE, env=actor.env).core).to_table())
    viewed_own(run.judge, rows, tips(run.judge))


APPENDERS: dict[str, Any] = {
    "appender": appender,
    "application": application,
    "append-reader": append_reader,
}

"""An exactly-once application in a simulated history whose shards, logs and owners change.

Its driver retries a batch until it succeeds, each time in a new process, as a cluster runs tasks;
some of these die when their entry is durable and nothing else is. Every row must be in the log
once, whatever was resharded, moved, flushed by a native writer, folded or collected in between; and
a clone must accept exactly those rows of each batch that it does not hold (P-2, P-6).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from simulator.copies import Copy
from simulator.cuts import CUTS_MAX, copy_of, cut, draw_story, tidy_copy
from simulator.env import SimThread
from simulator.reshards import final_of_reshards
from simulator.roles import KEYS, table_rows, to_batch
from simulator.scenarios import SHARD, TABLE, Plan, Role, Run
from simulator.scheduler import Actor
from simulator.truth import BatchId, Row, State, Violation, fold_rows, index_rows
from weir.config import WriterConfig
from weir.errors import WeirError
from weir.making import open as open_table
from weir.read.scan import Scan
from weir.records.checkpoints import Checkpoint
from weir.table import Table

APP: Final = 2_000_000
"""Session number of the application's rows."""
NAME: Final = "application"
ROWS_MAX: Final = 4
DEATHS: Final = 0.3


def draw_tokens(plan: Plan, rng: random.Random) -> None:
    """Native writers or moves of the log, not both: the former know only a log beside the data."""
    draw_story(plan, rng)
    out = rng.choice(("native", "mover"))
    plan.roles = [role for role in plan.roles if role.kind != out] or plan.roles


def rows_of(run: Run, version: int) -> list[Row]:
    """The rows of one batch, the same at every attempt; each is a batch of its own to the judge,
    since a routing may put them into different shards."""
    rng = random.Random(f"application/{run.plan.seed}/{version}")
    keyed = run.plan.keyed
    return [
        (
            rng.randrange(KEYS) if keyed else APP + version * 10 + i,
            APP,
            version * 10 + i,
            0,
            1,
            False,
        )
        for i in range(rng.randint(1, ROWS_MAX))
    ]


def _id(row: Row) -> BatchId:
    return (row[1], row[2])


def feeder(run: Run, actor: Actor, role: Role) -> None:
    """The driver: one batch after another, each retried until it is in."""
    rng = random.Random(f"feeder/{run.plan.seed}/{actor.name}")
    for attempt in range(role.ops):
        version = run.stream_offset + 1
        rows = rows_of(run, version)
        for row in rows:
            run.judge.putting(_id(row), [row])
        if _try(run, role, f"{actor.name}.{attempt}", version, dies=rng.random() < DEATHS):
            _must_be_in(run, rows, version)
            run.note(actor, f"batch {version} is in")
            run.stream_offset = max(run.stream_offset, version)
            run.judge.counts["once"] += 1
        actor.env.clock.sleep(rng.choice((0.05, 0.5, 5.0)))


def _must_be_in(run: Run, rows: list[Row], version: int) -> None:
    judge = run.judge
    for row in rows:
        put = judge.puts[_id(row)]
        if put.id not in judge.seen:
            raise Violation("D", f"batch {version} is said to be in, and row {row} is not (P-6)")
        judge.acked(judge.where[put.id], put, judge.seen[put.id])


def _try(run: Run, role: Role, name: str, version: int, *, dies: bool) -> bool:
    """A process that puts one batch; False when it failed, or died."""
    actor = run.actor(name, f"task/{run.plan.seed}/{name}")
    done: list[bool] = []

    def end(writing: Actor, _op: str, uri: str, _data: Any) -> None:
        if dies and writing is actor and "/wal/" in uri and _is_in_part(run, version):
            run.note(actor, "dies with its entry durable")
            run.scheduler.kill(actor)

    def body() -> None:
        try:
            done.append(feed(run, actor, role, open_table(TABLE, env=actor.env), version))
        except WeirError as error:
            run.note(actor, f"told {type(error).__name__} for batch {version}")
            run.judge.failed(SHARD, error, None, 0)
        finally:
            if not actor.dead:
                run.scheduler.kill(actor)  # its writers with it, closed or not

    run.world.on_write.append(end)
    SimThread(run.scheduler, run.scheduler.spawn(actor, body, name=name)).join()
    run.world.on_write.remove(end)
    return done == [True]


def _is_in_part(run: Run, version: int) -> bool:
    return any(_id(row) in run.judge.seen for row in rows_of(run, version))


def feed(run: Run, actor: Actor, role: Role, table: Table, version: int) -> bool:
    """Put one batch shard by shard, like a sink that knows the routing; True when all are in."""
    rng = random.Random(f"feed/{run.plan.seed}/{actor.name}/{version}")
    values = {**role.config, "fence_ttl": run.plan.fence_ttl}
    if run.plan.wal_only:
        values["enable_memtable"] = False
    for value, part in table.core.router.split(to_batch(rows_of(run, version))):
        table.core.ensure_shard(value)
        writer = table.shard(value).writer(WriterConfig(**values))
        fresh = writer.put_once(pa.Table.from_batches([part]), app=NAME, version=version)
        run.note(actor, f"{'put' if fresh else 'knows'} {part.num_rows} rows of batch {version}")
        if rng.random() < 0.6:
            writer.close()
    return True


@dataclass
class Fed(Copy):
    """A clone that the application continues to feed."""

    versions: range = range(0)
    """The batches it is fed: some that it holds, and the first that it does not."""
    wanted_after: State = field(default_factory=dict)


def token_cutter(run: Run, actor: Actor, role: Role) -> None:
    """Clones the table while all else runs, and feeds the application's batches to the clone."""
    rng = random.Random(f"token-cutter/{run.plan.seed}/{actor.name}")
    for index in range(min(role.ops, CUTS_MAX)):
        actor.env.clock.sleep(rng.choice((0.05, 0.5, 5.0)))
        try:
            table = open_table(TABLE, env=actor.env)
            made = cut(run, actor, rng, table)
            if rng.random() < 0.3:
                continue
            copy = _fed(run, made, copy_of(run, actor, rng, table, made, index))
            run.copies[copy.uri] = copy
            feed_copy(run, actor, role, copy)
            tidy_copy(run, rng, open_table(copy.uri, env=actor.env))
            feed_copy(run, actor, role, copy)
        except WeirError as error:
            run.note(actor, f"feeding a clone failed: {type(error).__name__}")
            run.judge.failed(SHARD, error, None, 0)


def _fed(run: Run, made: Checkpoint, copy: Copy) -> Fed:
    """The clone, and what it must hold once fed: each row that the cut lacks, once."""
    pins = {pin.shard: pin.wal_through for pin in made.shards}
    judge = run.judge

    def holds(row: Row) -> bool:
        place = judge.where.get(_id(row))
        return place in pins and judge.seen[_id(row)] <= pins[place]

    first = 1
    while all(holds(row) for row in rows_of(run, first)):
        first += 1
    versions = range(max(1, first - 2), first + 2)
    missing = [row for v in versions for row in rows_of(run, v) if not holds(row)]
    assert copy.state is not None, "read before"
    after = fold_rows(copy.state, missing, keyed=run.plan.keyed)
    return Fed(copy.uri, TABLE, state=copy.state, versions=versions, wanted_after=after)


def feed_copy(run: Run, actor: Actor, role: Role, copy: Fed) -> None:
    """Feed every batch once more, and check what the clone holds."""
    for version in copy.versions:
        feed(run, actor, role, open_table(copy.uri, env=actor.env), version)
    rows = table_rows(Scan(open_table(copy.uri, env=actor.env).core).to_table())
    found = index_rows(rows, keyed=run.plan.keyed)
    run.judge.counts["clones fed"] += 1
    if found != copy.wanted_after:
        lost, more = copy.wanted_after.keys() - found.keys(), found.keys() - copy.wanted_after
        raise Violation("O", f"{copy.uri} was fed {copy.versions}: lost {lost}, more {more} (P-6)")


def final_of_tokens(run: Run, actor: Actor) -> None:
    """On a healthy store: what is missing in a clone can be put there, and the table is whole."""
    role = Role("final", config={"durable_write": True})
    for copy in run.copies.values():
        if isinstance(copy, Fed):
            feed_copy(run, actor, role, copy)
    final_of_reshards(run, actor)
    version = run.stream_offset + 1
    rows = rows_of(run, version)
    for row in rows:
        run.judge.putting(_id(row), [row])
    for again in (version, max(1, version - 1), version):
        feed(run, actor, role, open_table(TABLE, env=actor.env), again)
    _must_be_in(run, rows, version)


FEEDERS = {"feeder": feeder, "token-cutter": token_cutter}

"""Clones in a simulated history: made during faults, written to, cloned again, read to the end.

The judge's truth is the parent's log. The first read of a clone must show one moment of that log
(the checkpoint's, if one was named), and the clone must keep it, whatever happens to the parent.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from simulator.keepers import ModelRunner
from simulator.roles import KEYS, final, table_rows, to_batch
from simulator.scenarios import SHARD, TABLE, Role, Run
from simulator.scheduler import Actor
from simulator.truth import Row, State, Violation, fold_rows, index_rows
from weir.config import WriterConfig
from weir.errors import CheckpointNotFound, WeirError
from weir.making import open as open_table
from weir.read.scan import Scan
from weir.routing.shards import Shard
from weir.table import Table
from weir.upkeep.checkpoint import create
from weir.upkeep.compact.run import compact
from weir.upkeep.gc.collect import collect

ATTEMPTS: Final = 3
COPIES_MAX: Final = 3


@dataclass
class Copy:
    """One clone: what was requested, and what it must hold."""

    uri: str
    parent: str
    wal_uri: str | None = None
    checkpoint: UUID | None = None
    asked: bool = False
    """The checkpoint, or none, is chosen: every retry must use the same choice (C-4)."""
    low: int = 0
    high: int | None = None
    """The clone shows the parent's log through a position in [`low`, `high`]; None: the tip."""
    wanted: State | None = None
    """The exact state required, for the clone of a clone."""
    state: State | None = None
    """What the clone holds; None until it has been read once."""
    maybe: list[Row] = field(default_factory=list)
    """A batch that was put into the clone and not acknowledged."""


def cloner(run: Run, actor: Actor, role: Role) -> None:
    """Makes clones, finishes those that its killed predecessor left, and uses them."""
    name = actor.name.rstrip("'")
    rng = random.Random(f"cloner/{run.plan.seed}/{actor.name}")
    for index in range(min(role.ops, COPIES_MAX)):
        uri = f"s3://{name}-{index}"
        copy = run.copies.get(uri)
        if copy is None:
            copy = run.copies[uri] = _draw(run, rng, uri, index, name)
        for _ in range(ATTEMPTS):
            try:
                if not copy.asked:
                    _ask(run, actor, rng, copy)
                finish(run, actor, copy)
                break
            except WeirError as error:
                run.note(actor, f"clone failed: {type(error).__name__}")
                run.judge.failed(SHARD, error, None, 0)
        if copy.state is not None:
            _use(run, actor, role, rng, copy)
        actor.env.clock.sleep(0.1)


def _draw(run: Run, rng: random.Random, uri: str, index: int, name: str) -> Copy:
    parent = TABLE
    before = run.copies.get(f"s3://{name}-{index - 1}")
    if before is not None and before.state is not None and not before.maybe and rng.random() < 0.5:
        parent = before.uri
    return Copy(uri, parent, wal_uri=rng.choice((None, None, f"{uri}-wal")))


def _ask(run: Run, actor: Actor, rng: random.Random, copy: Copy) -> None:
    truth = run.judge.truth(SHARD)
    copy.low = truth.acked
    if copy.parent != TABLE:
        copy.wanted = run.copies[copy.parent].state
    if rng.random() < 0.6:
        scope = "durable" if run.plan.wal_only or rng.random() < 0.7 else "all"
        made = create(open_table(copy.parent, env=actor.env).core, scope)
        copy.checkpoint = made.id
        pin = made.pin(SHARD)
        copy.low = copy.high = 0 if pin is None else pin.wal_through
        run.note(actor, f"{copy.uri} shall be {copy.parent} at {copy.high}")
    copy.asked = True


def finish(run: Run, actor: Actor, copy: Copy) -> None:
    """Make the clone, or finish making it; check it if it was made before."""
    if copy.state is not None:
        check_copy(run, actor, copy)
        return
    parent = open_table(copy.parent, env=actor.env)
    made = parent.clone(copy.uri, copy.checkpoint, copy.wal_uri)
    run.judge.counts["clones"] += 1
    run.note(actor, f"made {copy.uri} from {copy.parent}")
    _first_look(run, made, copy)


def _first_look(run: Run, table: Table, copy: Copy) -> None:
    rows = table_rows(Scan(table.core).to_table())
    if copy.wanted is not None:
        found = index_rows(rows, keyed=run.plan.keyed)
        if found != copy.wanted:
            raise Violation("K", f"{copy.uri} is not what {copy.parent} was")
    else:
        truth = run.judge.truth(SHARD)
        high = truth.tip if copy.high is None else copy.high
        run.judge.viewed(SHARD, rows, low=copy.low, high=high)
    copy.state = index_rows(rows, keyed=run.plan.keyed)


def check_copy(run: Run, actor: Actor, copy: Copy) -> None:
    """Check that the clone still holds what it held, and what was put into it."""
    assert copy.state is not None, "read before"
    keyed = run.plan.keyed
    try:
        rows = table_rows(Scan(open_table(copy.uri, env=actor.env).core).to_table())
    except WeirError as error:
        run.judge.failed(SHARD, error, None, 0)
        return
    found = index_rows(rows, keyed=keyed)
    run.judge.counts["views of a clone"] += 1
    if found not in (copy.state, fold_rows(copy.state, copy.maybe, keyed=keyed)):
        raise Violation("K", f"{copy.uri} changed: {copy.state} became {found}")


def _use(run: Run, actor: Actor, role: Role, rng: random.Random, copy: Copy) -> None:
    """Put into the clone, compact it, collect it; nothing else in clone or parent may change."""
    try:
        table = open_table(copy.uri, env=actor.env)
        waited_for = any(c.parent == copy.uri and c.state is None for c in run.copies.values())
        if not copy.maybe and not waited_for and rng.random() < 0.7:
            _put(run, rng, table, role, copy)
        if rng.random() < 0.4:
            compact(table.core, engine=ModelRunner(), lease=0)
        if rng.random() < 0.4:
            ttl = run.plan.fence_ttl
            collect(
                table.core,
                min_age=0.0,
                fence_retention=2 * ttl,
                keep_first_entries=bool(ttl),
            )
    except WeirError as error:
        run.note(actor, f"use of {copy.uri} failed: {type(error).__name__}")
        run.judge.failed(SHARD, error, None, 0)
    check_copy(run, actor, copy)


def _put(run: Run, rng: random.Random, table: Table, role: Role, copy: Copy) -> None:
    assert copy.state is not None, "read before"
    session, size = run.next_session(), rng.randint(1, 3)
    keyed = run.plan.keyed
    values = {**role.config, "fence_ttl": run.plan.fence_ttl, "durable_write": True}
    if run.plan.wal_only:
        values["enable_memtable"] = False
    with Shard(table.core, SHARD, None).writer(WriterConfig(**values)) as writer:
        for batch in range(rng.randint(1, 3)):
            copy.maybe = [
                (rng.randrange(KEYS) if keyed else session, session, batch, i, size, False)
                for i in range(size)
            ]
            writer.put(to_batch(copy.maybe))
            copy.state = fold_rows(copy.state, copy.maybe, keyed=keyed)
            copy.maybe = []
    run.judge.counts["sessions of a clone"] += 1


def final_of_clones(run: Run, actor: Actor) -> None:
    """Finish every clone that was begun; check that clones and parent hold what they must."""
    for copy in run.copies.values():
        if copy.state is None and copy.asked:
            try:
                finish(run, actor, copy)
            except CheckpointNotFound as gone:
                # An unnamed moment is kept by the parent only for as long as a clone may take.
                if copy.checkpoint is not None:
                    raise Violation("K", f"{copy.uri} cannot be finished: {gone}") from gone
                run.note(actor, f"{copy.uri} is given up")
                continue
        if copy.state is not None:
            check_copy(run, actor, copy)
    final(run, actor)


CLONERS = {"cloner": cloner}

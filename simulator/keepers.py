"""Processes that keep a simulated table tidy: they delete, so they are watched most."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from simulator.model_fragments import FragmentLake
from simulator.model_lake import ModelLake
from simulator.roles import core_of, table_rows
from simulator.scenarios import SHARD, TABLE, Role, Run
from simulator.scheduler import Actor
from simulator.truth import Violation
from weir.config import WriterConfig
from weir.errors import CommitConflict, MissingEntry, StoreError, WalStoreMismatch, WeirError
from weir.lake.base.fold import VersionEdit
from weir.making import open as open_table
from weir.merge.merge import winners
from weir.read.reader import SnapshotReader
from weir.read.scan import Scan
from weir.read.snapshot import Snapshot
from weir.records.checkpoints import Checkpoint
from weir.routing.core import Core
from weir.upkeep.checkpoint import create, delete
from weir.upkeep.compact.run import compact
from weir.upkeep.gc.collect import collect
from weir.upkeep.tasks import Progress, Result, Task, run_task


def collector(run: Run, actor: Actor, role: Role) -> None:
    """Collects again and again, mostly without a minimum age.

    With `fence_ttl` 0 ownership is proved after every put, and even the first entries of epochs may
    be deleted at once.
    """
    rng = random.Random(f"collector/{run.plan.seed}/{actor.name}")
    ttl = run.plan.fence_ttl
    retention = max(run.plan.fence_retention, 0.05, 2 * ttl) if ttl else 0.0
    for _ in range(role.ops):
        try:
            report = collect(
                _core(run, actor),
                min_age=rng.choice((0.0, 0.0, 0.05)) if ttl else 0.0,
                fence_retention=retention,
                keep_first_entries=bool(ttl) or rng.random() < 0.5,
            )
        except WeirError as error:
            run.judge.failed(SHARD, error, None, 0)
            continue
        run.note(actor, f"collected {report.deleted} objects, {len(report.errors)} errors")
        run.judge.counts["collected"] += report.deleted
        for text in report.errors:
            if any(name in text for name in ("RuleBroken", "CorruptEntry", "MissingEntry")):
                raise Violation("T", f"collection of a healthy table: {text}")
        actor.env.clock.sleep(0.1)


def _core(run: Run, actor: Actor) -> Core:
    """What to collect: the table of one shard, or in a story every shard of the table."""
    return open_table(TABLE, env=actor.env).core if run.plan.is_story else core_of(run, actor)


def collect_once(run: Run, actor: Actor) -> None:
    """One collection of everything that may go."""
    core = core_of(run, actor)
    report = collect(core, min_age=0.0, fence_retention=0.0, keep_first_entries=False)
    if report.errors:
        raise Violation("T", f"collection of a healthy table: {report.errors}")


class ModelRunner:
    """Runs compaction's tasks on the model: the real plan and merge, the model's files."""

    name = "local"
    slots = 1

    def run(self, core: Core, tasks: Sequence[Task], progress: Progress | None) -> list[Result]:
        """One result for each task."""
        return [self._one(core, task) for task in tasks]

    def _one(self, core: Core, task: Task) -> Result:
        lake = core.lake
        if isinstance(lake, FragmentLake):
            return run_task(core, task)
        assert isinstance(lake, ModelLake), "a lake of this world"
        reader = SnapshotReader(core, Snapshot.from_json(task["snapshot"]))
        changes, written = VersionEdit(), 0
        for rows in self._parts(core, winners(reader.levels(), reader.schema, core.env)):
            made = lake.write_changes(core.env.new_id().hex, rows)
            changes = VersionEdit(added=(*changes.added, *made.added))
            written += rows.num_rows
            del rows  # not held while the next are read
        return {"changes": changes.to_json(), "written": written, "deleted": 0}

    def _parts(self, core: Core, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Rows that are written together: as many as a read may hold."""
        part: list[pa.RecordBatch] = []
        held = 0
        for batch in batches:
            part.append(batch)
            held += batch.nbytes
            del batch
            if held > core.env.limits.read_bytes:
                yield pa.Table.from_batches(part)
                part, held = [], 0
        if part:
            yield pa.Table.from_batches(part)


class Handle:
    """The part of `weir.Table` that upkeep uses."""

    def __init__(self, run: Run, actor: Actor, *, memtable: bool) -> None:
        self.core = core_of(run, actor)
        self.writer_defaults = WriterConfig(enable_memtable=memtable, fence_ttl=run.plan.fence_ttl)


def compactor(run: Run, actor: Actor, role: Role) -> None:
    """Folds waiting rows into the base, sometimes replacing a compactor that only seems dead."""
    rng = random.Random(f"compactor/{run.plan.seed}/{actor.name}")
    handle: Any = Handle(run, actor, memtable=not run.plan.wal_only)
    for _ in range(role.ops):
        try:
            lease = rng.choice((0.0, 0.0, 1.0, 900.0))
            report = compact(handle.core, engine=ModelRunner(), lease=lease)
        except WeirError as error:
            run.note(actor, f"compaction failed: {type(error).__name__}")
            # A compactor that was replaced may find the input of its plan collected (G-12).
            if not isinstance(error, CommitConflict):
                run.judge.failed(SHARD, error, None, 0)
        else:
            run.note(actor, f"compacted {report.generations}, {report.wal_entries} entries")
            run.judge.counts["folds"] += report.job is not None
        actor.env.clock.sleep(0.1)


def checkpointer(run: Run, actor: Actor, role: Role) -> None:
    """Makes checkpoints, reads them again and again, and deletes some (K)."""
    rng = random.Random(f"checkpointer/{run.plan.seed}/{actor.name}")
    handle: Any = Handle(run, actor, memtable=not run.plan.wal_only)
    held: list[Checkpoint] = []
    truth = run.judge.truth(SHARD)
    for _ in range(role.ops):
        low = truth.acked
        scope = "durable" if run.plan.wal_only or rng.random() < 0.7 else "all"
        try:
            made = create(handle.core, scope, ttl=rng.choice((None, 1e9)))
        except WeirError as error:
            run.note(actor, f"checkpoint failed: {type(error).__name__}")
            run.judge.failed(SHARD, error, None, 0)
        else:
            pins = [pin for pin in made.shards if pin.shard == SHARD]
            if not pins and low:
                raise Violation("K", "a checkpoint without the shard")
            for pin in pins:
                run.note(actor, f"pinned manifest {pin.manifest_version}, T {pin.wal_through}")
                if pin.wal_through < low:
                    raise Violation(
                        "K", f"T is {pin.wal_through}, and {low} was acknowledged (K-2)"
                    )
                run.judge.pins[made.id] = (SHARD, pin.manifest_version, pin.wal_through)
                held.append(made)
        for checkpoint in held:
            _read_pinned(run, actor, handle.core, checkpoint)
        if held and rng.random() < 0.3:
            gone = held.pop(rng.randrange(len(held)))
            del run.judge.pins[gone.id]
            try:
                delete(handle.core, gone)
            except WeirError as error:
                run.judge.failed(SHARD, error, None, 0)
        actor.env.clock.sleep(0.1)


def _read_pinned(run: Run, actor: Actor, core: Core, checkpoint: Checkpoint) -> None:
    through = next(p.wal_through for p in checkpoint.shards if p.shard == SHARD)
    if run.plan.is_story and run.scheduler.step % 2:
        core = core_of(run, actor)  # one that has cached nothing
    try:
        rows = table_rows(Scan(core, pinned=checkpoint).to_table())
    except StoreError as error:
        run.note(actor, f"read at a checkpoint failed: {type(error).__name__}")
        return
    except WeirError as error:
        if run.world.confused and isinstance(error, WalStoreMismatch | MissingEntry):
            return  # S-7: its log cannot be seen from here
        raise Violation("K", f"a checkpoint cannot be read: {error}") from error
    run.judge.counts["views at a checkpoint"] += 1
    base = checkpoint.base_version
    run.judge.viewed(SHARD, rows, low=through, high=through, base=(base, base))


KEEPERS = {"checkpointer": checkpointer, "collector": collector, "compactor": compactor}

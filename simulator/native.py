"""A native writer in a simulated history: it follows the format, and knows none of weir's rules.

It does as pylance 14 does: replay starts the MemTable at the manifest's current generation whatever
the first tag is, skips entries tagged below it, and fails where tags fall, jump, or fill a
generation beyond its MemTable. Its own rows are tagged with the MemTable's number; a flush
publishes that number, and R may lag behind it by an entry. It announces nothing. LanceDB writes no
tags and cannot replay a tagged entry; pylance starts a new number in untagged entries where its
MemTable is full. Claim and fence are weir's: pylance orders the two wrongly, which no other writer
can repair.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from simulator.roles import Session, core_of
from simulator.scenarios import SHARD, Plan, Role, Run
from simulator.scheduler import Actor
from simulator.truth import Violation
from simulator.world import Faults
from weir.errors import FencedError, StoreError, WeirError
from weir.format import paths
from weir.format.manifest import ShardManifest
from weir.format.schema import align_batch
from weir.format.wal_entry import EntryEncoder, Fill, WalEntry, decode_entry
from weir.log.fence import claim_shard
from weir.log.intake import Intake
from weir.log.manifests import Manifests
from weir.log.ownership import Claim
from weir.log.rules import Evidence
from weir.log.tags import Bounds
from weir.store.api import Bytes, ObjectExists
from weir.types import Generation, Position

LAG_CHANCE: Final = 0.3
UNTAGGED_CHANCE: Final = 0.2
LARGE: Final = Bounds(rows=100, batches=100, nbytes=1 << 40)
"""What LanceDB's MemTable holds; it ignores the bounds of other writers."""


def draw_modes(plan: Plan, rng: random.Random) -> None:
    """A table whose defaults are WAL-only: compaction folds its log, whichever writer wrote it.
    Half of the stores never fail and compactors live long, so that more is written and folded."""
    plan.wal_only = plan.is_story = True
    plan.edge = {"max_memtable_rows": rng.choice((4, 9)), "max_memtable_batches": 4}
    if rng.random() < 0.5:
        plan.faults = Faults().record()
    for role in plan.roles:
        if role.kind == "compactor":
            role.kills, role.ops = [], 12


class NativeError(Exception):
    """What pylance raises as an `OSError`; its handle is unusable afterwards."""


@dataclass
class MemTable:
    """Rows of one generation."""

    generation: Generation
    filled: Fill = field(default_factory=Fill)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    is_tagged: bool = True
    """All of its entries are tagged: the tag tells which were flushed."""


class NativeWriter:
    """One open handle."""

    def __init__(self, run: Run, actor: Actor, *, lag: bool, tags: bool = True) -> None:
        self.site = run.site(actor)
        self._run = run
        self._actor = actor
        self._lag = lag
        self._tags = tags
        self._schema = run.schema
        self._bounds = Bounds.of(core_of(run, actor).record.writer_defaults)
        if not tags:
            self._bounds = LARGE
        self._manifests = Manifests(self.site)
        self._intake = Intake(run.schema)
        claim = claim_shard(self.site, self._manifests)
        self.epoch = claim.epoch
        self._next = Position(claim.fence + 1)
        self._active = MemTable(Generation(claim.manifest.current_generation))
        run.judge.opened(SHARD, self.epoch)
        self._replay(claim)

    def put(self, batch: pa.RecordBatch) -> Position:
        """Put durably; returns the position."""
        rows = self._intake.rows(batch)
        more = Fill(sum(part.num_rows for part in rows), len(rows), sum(p.nbytes for p in rows))
        if not self._bounds.has_room(self._active.filled, more):
            self.flush()
        memtable = self._active
        entry = self._encode(rows, memtable.generation)
        position = self._next
        try:
            self.site.wal.put_if_absent(paths.wal_path(SHARD, position), entry)
        except ObjectExists:
            raise NativeError(f"position {position} is taken: fenced") from None
        self._take_in(rows, more, position, is_tagged=self._tags)
        self._next = Position(position + 1)
        return position

    def _encode(self, rows: list[pa.RecordBatch], generation: Generation) -> Bytes:
        if self._tags:
            return EntryEncoder(self._schema).encode(
                rows,
                epoch=self.epoch,
                generation=generation,
                entry_id=str(self._actor.env.new_id()),
            )
        schema = self._schema.wal
        metadata = {**(schema.metadata or {}), b"writer_epoch": b"%d" % self.epoch}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema.with_metadata(metadata)) as stream:
            for batch in rows:
                stream.write_batch(batch)
        return bytes(sink.getvalue())

    def flush(self) -> None:
        """Write the MemTable as an SSTable, published under its number."""
        memtable, self._active = self._active, MemTable(Generation(self._active.generation + 1))
        if memtable.positions:
            self._publish(memtable)
        else:
            self._active = memtable

    def _take_in(
        self, rows: list[pa.RecordBatch], more: Fill, position: int, *, is_tagged: bool
    ) -> None:
        self._active.is_tagged = self._active.is_tagged and is_tagged
        self._active.batches += rows
        self._active.filled += more
        self._active.positions.append(position)

    def _replay(self, claim: Claim) -> None:
        current = claim.manifest.current_generation
        last: int | None = None
        for position in range(claim.manifest.replay_after + 1, claim.fence):
            path = paths.wal_path(SHARD, Position(position))
            data = self.site.wal.get(path).data
            entry = decode_entry(data, position=Position(position), path=path)
            if not entry.batches or (entry.generation or current) < current:
                continue
            last = self._follow(entry, last)

    def _follow(self, entry: WalEntry, last: int | None) -> int:
        """Replay an entry that follows one of generation `last`; returns its generation."""
        where = f"a native writer cannot replay position {entry.position}"
        rows = [align_batch(batch, self._schema.wal) for batch in entry.batches]
        more = Fill(entry.num_rows, len(rows), 0)
        limits = replace(self._bounds, nbytes=1 << 40)  # every program counts bytes differently
        tag = entry.generation
        if tag is None:
            tag = Generation(last or self._active.generation)
            if not limits.has_room(self._active.filled, more):
                self.flush()
                tag = Generation(tag + 1)
        elif not self._tags:
            raise NativeError(f"position {entry.position} is tagged: no such column")
        elif last is not None and tag not in (last, last + 1):
            raise Violation("L", f"{where}: generation {tag} after {last} (F-14)")
        elif last is not None and tag > last:
            self.flush()
        if not limits.has_room(self._active.filled, more):
            raise Violation("L", f"{where}: generation {tag} has more rows than fit (F-15)")
        self._take_in(rows, more, entry.position, is_tagged=entry.generation is not None)
        return int(tag)

    def _publish(self, memtable: MemTable) -> None:
        number = memtable.generation
        name = paths.sstable_name(number, f"{self._actor.env.random.getrandbits(32):08x}")
        lake = self._run.lake(self._actor)
        info = lake.write_sstable(SHARD, name, memtable.batches, self._schema)
        covered = memtable.positions[-1]
        if self._lag and memtable.is_tagged and len(memtable.positions) > 1:
            covered = memtable.positions[-2]

        def change(current: ShardManifest) -> tuple[ShardManifest, Evidence] | None:
            if current.current_generation != number:
                raise NativeError(f"generation {number} cannot flush before its turn")
            through = Position(max(covered, current.replay_after))
            following = replace(
                current,
                sstables=(*current.sstables, info.listed_as(number, name)),
                current_generation=Generation(number + 1),
                replay_after=through,
                last_seen=Position(max(through, current.last_seen)),
            )
            return following, Evidence(covered=through)

        self._manifests.update(change, epoch=self.epoch)


def native(run: Run, actor: Actor, role: Role) -> None:
    """Opens as pylance does, puts, flushes, and closes or leaves without closing."""
    for _ in range(role.sessions):
        session = Session(run, actor, role, run.next_session())
        run.note(actor, f"open session {session.number}, native")
        try:
            lag, tags = (
                session.rng.random() > chance for chance in (1 - LAG_CHANCE, UNTAGGED_CHANCE)
            )
            # Without a key, untagged rows cannot be distinguished from flushed ones: no promise.
            writer = NativeWriter(run, actor, lag=lag, tags=tags or not run.plan.keyed)
            run.note(actor, f"opened epoch {writer.epoch}")
            _work(run, actor, role, session, writer)
        except (NativeError, FencedError, StoreError) as error:
            run.note(actor, f"native: {type(error).__name__}: {error}")
            run.judge.counts["native sessions ended by an error"] += 1
        except WeirError as error:
            run.note(actor, f"native: {type(error).__name__}")
            run.judge.failed(SHARD, error, None, 0)


def _work(run: Run, actor: Actor, role: Role, session: Session, writer: NativeWriter) -> None:
    for _ in range(role.ops):
        if session.rng.random() < 0.8:
            put, data = session.make()
            position = writer.put(data)
            run.note(actor, f"acked {put.id} at {position}")
            run.judge.acked(SHARD, put, position)
            run.judge.counts["native puts"] += 1
        else:
            writer.flush()
    if session.rng.random() < 0.5:
        writer.flush()
        run.note(actor, "closed")


MODES = {"mode-native": native}

"""Writers that read before they write: inserts, updates, conditions, filters (O-1 to O-4).

Processes with several threads replace each other, are killed and interrupted, and decide on the
same three hot keys. The judge knows the verb of every batch and demands, from the log alone: a
written row follows from the row of its key just before it in the log (an insert found none, an
update kept the column it did not name, a condition or filter held); the answer matches the log; and
an answer that nothing was written (a conflict, a skip) was true at some moment of the log between
the start of the call and its end, so that no zombie answers from its memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from simulator.deletions import split_uri
from simulator.interrupts import InterruptedSession
from simulator.roles import to_batch, write_record
from simulator.scenarios import SHARD, TABLE, Plan, Role, Run
from simulator.scheduler import Actor
from simulator.truth import BatchId, Put, Row, Violation
from simulator.world import Faults
from weir.errors import KeyConflict, SnapshotExpired, WeirError
from weir.format import paths
from weir.shard.request import WriteCounts
from weir.shard.writer import ShardWriter
from weir.store.api import Bytes

HOT: Final = 3
"""The number of keys that all writers decide on."""
KEPT: Final = "x"
"""The column that no update names."""
NEWER: Final = "current IS NULL OR incoming.c > current.c"
VERBS: Final = ("insert", "insert skip", "update", "update skip", "update insert", "when")
WHERE: Final = "where"
"""`update_where`, in one history of five only: the others stay as they were before it."""


def draw_decisions(plan: Plan, rng: random.Random) -> None:
    """Keys, MemTables, several threads; interrupts in half of the histories."""
    plan.keyed, plan.wal_only = True, False
    strikes = rng.choice((0.0, 0.0, 0.05, 0.2))
    plan.edge = {"column": "kept", "strikes": strikes, "waits": rng.random() < 0.5}
    plan.edge["where"] = plan.seed % 5 == 2
    if rng.random() < 0.4:
        plan.faults = Faults().record()
    for role in plan.roles:
        if role.kind == "decider":
            role.threads = rng.choice((1, 2, 3))
            role.ops = rng.randint(4, 10)
            role.config["enable_memtable"] = True
            role.config["durable_write"] = rng.random() < 0.85


@dataclass(frozen=True)
class Cell:
    """What a key holds: the batch of its row, and the column that updates keep."""

    session: int
    batch: int
    kept: int | None


@dataclass(frozen=True)
class Change:
    """What one row of the log did to its key."""

    position: int
    key: int
    after: Cell | None


class DecisionJudge:
    """Watches the log, row by row, and the answers that deciders get."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.asked: dict[BatchId, str] = {}
        self.inserted: dict[BatchId, int] = {}
        """How many rows of each batch in the log found no row of their key."""
        self._changes: list[Change] = []
        self._cells: dict[int, Cell] = {}
        self._tip = 0

    def on_write(self, _actor: Actor, _op: str, uri: str, data: Bytes) -> None:
        """See `World.on_write`."""
        root, path = split_uri(uri)
        parts = path.split("/")
        if root != TABLE or len(parts) != 4 or parts[2] != "wal":
            return
        position = paths.parse_wal_name(parts[3])
        if position is None or position <= self._tip:
            return
        self._tip = position
        for batch in pa.ipc.open_stream(data):
            for row in batch.to_pylist():
                self._take(position, row)

    def _take(self, position: int, row: dict[str, Any]) -> None:
        key, batch = row["k"], (row["w"], row["c"])
        there = self._cells.get(key)
        after = None if row["_tombstone"] else Cell(*batch, row[KEPT])
        verb = self.asked.get(batch, "put")
        self.inserted[batch] = self.inserted.get(batch, 0) + (there is None)
        wrong = {
            "put": False,
            "insert": there is not None,
            "insert skip": there is not None,
            "update": there is None or there.kept != row[KEPT],
            "update skip": there is None or there.kept != row[KEPT],
            "update insert": row[KEPT] != (there.kept if there else None),
            "when": there is not None and row["c"] <= there.batch,
            WHERE: there is None or there.kept != row[KEPT] or row["c"] <= there.batch,
        }[verb]
        if wrong:
            raise Violation("O", f"{verb} wrote {row} at {position} over {there} (O-2)")
        self._changes.append(Change(position, key, after))
        if after is None:
            self._cells.pop(key, None)
        else:
            self._cells[key] = after

    def require_moment(self, verb: str, row: Row, low: int) -> None:
        """Raise unless at some moment since `low` that row required no write (O-3, O-4)."""
        states: list[Cell | None] = [None]
        for change in self._changes:
            if change.key == row[0]:
                if change.position <= low:
                    states = [change.after]
                else:
                    states.append(change.after)
        for there in states:
            if verb.startswith("update") and there is None:
                return
            if verb.startswith("insert") and there is not None:
                return
            if verb == "when" and there is not None and row[2] <= there.batch:
                return
            if verb == WHERE and (there is None or row[2] <= there.batch):
                return
        raise Violation("O", f"{verb} of {row} was told of as nothing, and it was {states} (O-4)")


class Decider(InterruptedSession):
    """A writer whose threads read before they write."""

    @property
    def _judge(self) -> DecisionJudge:
        judge: DecisionJudge = self.run.edge_judge
        return judge

    def make(self) -> tuple[Put, pa.RecordBatch]:
        """A put of whole rows on the hot keys."""
        self.counter += 1
        keys = self.rng.sample(range(HOT), self.rng.randint(1, HOT))
        put = self._putting(keys, deletes=True)
        return put, self._whole(put)

    def _putting(self, keys: list[int], *, deletes: bool = False) -> Put:
        batch, rng = self.counter, self.rng
        rows: list[Row] = [
            (key, self.number, batch, index, len(keys), deletes and rng.random() < 0.3)
            for index, key in enumerate(keys)
        ]
        put = self.run.judge.putting((self.number, batch), rows)
        self.made.append(put)
        return put

    def _whole(self, put: Put) -> pa.RecordBatch:
        kept = pa.array([1000 * self.number + put.id[1]] * len(put.rows), pa.int64())
        return to_batch(put.rows).append_column(KEPT, kept)

    def _op(self) -> None:
        try:
            self._some_op()
        except SnapshotExpired:
            self.run.note(self.actor, "own read overtaken")
        except WeirError as error:
            self._failed(error, None)
        except BaseException as error:  # noqa: BLE001  judged in `go_on`
            self._interrupted(error, "call")

    def _some_op(self) -> None:
        assert self.writer is not None, "opened first"
        roll = self.rng.random()
        if roll < 0.15:
            self._put()
        elif roll < 0.2:
            self._flush_wal()
        elif roll < 0.3:
            self.call(self.writer.flush)
        else:
            self._decide()

    def _decide(self) -> None:
        writer, rng, judge = self.writer, self.rng, self._judge
        assert writer is not None, "opened first"
        self.counter += 1
        verb = rng.choice((*VERBS, WHERE, WHERE) if self.run.plan.edge["where"] else VERBS)
        several = verb in {"insert", "update"}  # all or nothing; other verbs may write a part
        put = self._putting(rng.sample(range(HOT), rng.randint(1, 2) if several else 1))
        judge.asked[put.id] = verb
        low = self.run.judge.truth(SHARD).acked
        act = _act(verb, writer, self._rows(verb, put), rng.choice((None, None, 0.2)))
        durable = writer.config.durable_write
        try:
            told = self.call(act)
        except TimeoutError:
            return  # its put is under way, or its answer depends on one that is
        except KeyConflict as conflict:
            self._nothing(put, verb, [r for r in put.rows if r[0] in conflict.keys], low, durable)
            return
        except WeirError as error:
            self._failed(error, put)
            return
        self.run.note(self.actor, f"{verb} {put.id}: {told}")
        if told.skipped or told == WriteCounts():
            self._nothing(put, verb, put.rows, low, durable)
        elif durable:
            self.run.judge.acked(SHARD, put, self.run.judge.seen.get(put.id))
            if told.inserted != judge.inserted[put.id]:
                raise Violation("T", f"{verb} told {told}, and {judge.inserted[put.id]} were new")
        else:
            self.accepted.append(put)

    def _hear(self, error: WeirError, put: Put | None) -> None:
        """See `Session`; a call with a filter hands over no rows, and gets none back."""
        if put is None or self._judge.asked.get(put.id) != WHERE:
            super()._hear(error, put)

    def _rows(self, verb: str, put: Put) -> Any:
        """The rows as users pass them: a table, or dicts, which are shaped with other callers'."""
        partly = verb.startswith("update") or verb == WHERE
        batch = to_batch(put.rows) if partly else self._whole(put)
        batch = batch.drop_columns(["_tombstone"])
        self.run.judge.counts[f"decided by {verb}"] += 1
        if verb == WHERE:
            return batch.to_pylist()
        return batch.to_pylist() if self.rng.random() < 0.7 else pa.Table.from_batches([batch])

    def _nothing(self, put: Put, verb: str, rows: list[Row], low: int, durable: bool) -> None:  # noqa: FBT001
        """Check an answer that nothing was written."""
        if put.id in self.run.judge.seen:
            raise Violation("T", f"{verb} {put.id} was told of as nothing, and is in the log")
        put.refused = True
        self.run.judge.counts[f"nothing by {verb}"] += 1
        if durable:
            for row in rows:
                self._judge.require_moment(verb, row, low)


def _act(
    verb: str, writer: ShardWriter, rows: Any, timeout: float | None
) -> Callable[[], WriteCounts]:
    if verb == WHERE:
        ((_, key), *values) = rows[0].items()
        filter, changes = f"k = {key} AND c < {rows[0]['c']}", {n: str(v) for n, v in values}
        return lambda: writer.update_where(filter, changes, timeout=timeout)
    name, _, choice = verb.partition(" ")
    if name == "when":
        return lambda: writer.put(rows, when=NEWER, timeout=timeout)
    if name == "insert":
        conflict: Any = choice or "error"
        return lambda: writer.insert(rows, on_conflict=conflict, timeout=timeout)
    missing: Any = choice or "error"
    return lambda: writer.update(rows, missing=missing, timeout=timeout)


def decider(run: Run, actor: Actor, role: Role) -> None:
    """Opens, decides, puts, flushes, closes, and again."""
    for _ in range(role.sessions):
        Decider(run, actor, role, run.next_session()).live()


def make_decided(run: Run, actor: Actor) -> None:
    """Make the table, and the judge that watches the decisions."""
    write_record(run, actor)
    run.edge_judge = DecisionJudge(run)
    run.world.on_write.append(run.edge_judge.on_write)


DECIDERS = {"decider": decider}

"""Change feeds while the log moves, shards come and go, and collection follows (K-8, P-3, S-9).

Consumers read with `changes`, once or following, with or without a saved bookmark, with a
`WalTailer`, and as Spark's feed does (`simulator.spark_feeds`). The judge compares what each of
them gets with the log as it was first written: every row once and in order, or an error that says
why not. A row written to a position after its collection is not in that log, and no consumer may
get it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import pyarrow as pa

from simulator.reshards import final_of_reshards
from simulator.scenarios import COLUMNS, SHARD, TABLE, WAL, Plan, Role, Run
from simulator.scheduler import Actor
from simulator.truth import Row, Violation
from simulator.views import lows
from weir.errors import SnapshotExpired, StoreError, WeirError
from weir.format import paths
from weir.format.wal_entry import WalEntry
from weir.log.tailer import WalTailer
from weir.making import open as open_table
from weir.read.changes import Bookmark, Change
from weir.table import Table

Seen = tuple[Any, ...]
"""A row as a consumer gets it; a delete may have the key only."""
Part = tuple[int, list[Seen]]
"""The position of an entry, and its rows that a feed has handed out, which are not all."""


def draw_feeds(plan: Plan, rng: random.Random) -> None:
    """Every process opens the table as users do; its record may put the log on another store."""
    import simulator.spark_feeds  # noqa: F401  here, and not in the middle of a history

    plan.is_story = True
    plan.wal_uri = rng.choice((None, WAL))
    if rng.random() < 0.4:
        # Late puts that land at positions that were collected.
        plan.fence_ttl = 0.0
        plan.faults |= {"late": 0.15, "lose": 0.1}
        plan.settings |= {"policy": "stall", "stall_chance": 0.08}


def floor_of(run: Run, shard: UUID) -> int:
    """The position through which that log was collected."""
    folder = paths.floor_dir(shard, "wal")
    numbers = [paths.parse_mark_name(name.rpartition("/")[2]) for name in run.shelf.names(folder)]
    return max((number for number in numbers if number is not None), default=0)


def as_seen(row: Row, *, keys_of_deletes: bool) -> Seen:
    """What a consumer must get for the row."""
    return (row[0], True) if row[5] and keys_of_deletes else row


class Tally:
    """What one consumer got since it began, compared with the logs."""

    def __init__(
        self,
        run: Run,
        since: Mapping[UUID, int] | None,
        *,
        keys_of_deletes: bool = True,
        parts: Mapping[UUID, Part] | None = None,
    ) -> None:
        """`parts`: the entries after `since` of which an earlier feed handed out some rows."""
        self._run = run
        self._keys_of_deletes = keys_of_deletes
        self.resumes = since is not None
        self.at: dict[UUID, int] = dict(since or {})
        """The position through which it has everything, by shard."""
        self.parts: dict[UUID, Part] = dict(parts or {})
        """The entry of each shard that was begun: a feed that resumes within one hands out what
        has come in other shards first, as it reads shard after shard."""
        self._first: set[UUID] = set()
        """The shards of its first round, once that is over."""

    def handed(self, shard: UUID, position: int, rows: list[Seen]) -> None:
        """The consumer gets some rows of an entry."""
        begun, had = self.parts.pop(shard, (position, []))
        if begun != position:
            raise Violation("A", f"a feed hands out {had} of {begun}, then {position}")
        if position <= self.at.get(shard, 0):
            raise Violation("R", f"a feed hands out {rows} at {position} once more")
        self._check_passed(shard, position - 1)
        want, got = self._entry(shard, position), had + rows
        if got != want[: len(got)]:
            raise Violation("R", f"a feed hands out {got} at {position}, the log has {want}")
        if len(got) < len(want):
            self.parts[shard] = (position, got)
            return
        self.at[shard] = position
        self._run.judge.counts["entries fed"] += 1

    def settle(self) -> None:
        """The consumer must have got every entry whole."""
        if self.parts:
            raise Violation("A", f"a feed hands out only this of some entries: {self.parts}")

    def stands(self, positions: Mapping[UUID, int]) -> None:
        """A bookmark says that the consumer has everything through these positions."""
        for shard, position in positions.items():
            self._check_passed(shard, position)
            self.at[shard] = max(position, self.at.get(shard, 0))

    def ended(self, low: Mapping[UUID, int]) -> None:
        """The feed ended; `low` was acknowledged before it began, and must have been read."""
        self.settle()
        for shard, position in low.items():
            self._check_passed(shard, position)

    def expired(self, error: SnapshotExpired) -> None:
        """An error says that entries the consumer has not read were collected."""
        shards = self._run.judge.shards
        if not any(floor_of(self._run, shard) > self.at.get(shard, 0) for shard in shards):
            raise Violation("T", f"nothing that a feed has not read was collected: {error}")
        self._run.judge.counts["feeds told of collection"] += 1

    def late(self) -> None:
        """The consumer has seen every shard there is; of shards made later it must miss nothing."""
        self._first = self._first or set(self._run.judge.shards)

    def _entry(self, shard: UUID, position: int) -> list[Seen]:
        entry = self._run.judge.truth(shard).log.get(position)
        if entry is None:
            raise Violation("R", f"a feed hands out {position}, which is not in the log")
        return [as_seen(row, keys_of_deletes=self._keys_of_deletes) for row in entry.rows]

    def _check_passed(self, shard: UUID, through: int) -> None:
        """Raise if there are rows through that position that the consumer did not get."""
        after = self.at.get(shard)
        if after is None:
            # A new feed begins with the entries that are still there.
            may_skip = not self.resumes and (not self._first or shard in self._first)
            after = floor_of(self._run, shard) if may_skip else 0
        log = self._run.judge.truth(shard).log
        passed = [p for p in range(after + 1, through + 1) if p in log and log[p].rows]
        if passed:
            raise Violation("D", f"a feed of {str(shard)[:4]} passes over {passed}")


def rows_of(batch: pa.RecordBatch) -> list[Seen]:
    """Whole rows; for a batch of keys only, deletes."""
    if "w" not in batch.schema.names:
        return [(key, True) for key in batch.column("k").to_pylist()]
    columns = [batch.column(name).to_pylist() for name in COLUMNS]
    marks = (
        batch.column("_tombstone").to_pylist()
        if "_tombstone" in batch.schema.names
        else [False] * batch.num_rows
    )
    return list(zip(*columns, marks, strict=True))


class Consumer:
    """One program that reads the feed; its bookmark outlives it."""

    def __init__(self, run: Run, actor: Actor) -> None:
        self.run, self.actor = run, actor
        self.name = actor.name.rstrip("'")
        self.rng = random.Random(f"feed/{run.plan.seed}/{actor.name}")
        self._table: Table | None = None

    @property
    def table(self) -> Table:
        """One handle for all its life."""
        self._table = self._table or open_table(TABLE, env=self.actor.env)
        return self._table

    def read(self, *, follow: bool, until: int = 0) -> None:
        """Read one feed, from the bookmark on if there is one."""
        run, (text, parts) = self.run, self.run.bookmarks.get(self.name, (None, {}))
        since = None if text is None else Bookmark.from_json(text).positions
        tally, low = Tally(run, since, parts=parts), lows(run.judge)
        run.note(self.actor, f"reads changes since {text}" + (", follows" if follow else ""))

        def is_over() -> bool:
            if set(run.judge.shards) <= set(feed.bookmark.positions):
                tally.late()
            return follow and run.scheduler.step > until

        feed = self.table.changes(
            text, follow, poll=self.rng.choice((0.02, 1.0, 30.0)), stop=is_over
        )
        try:
            for change in feed:
                before = dict(tally.parts)
                self._got(tally, change)
                if self.rng.random() < 0.3:
                    tally.stands(_without(feed.bookmark, tally, change))
                    after = self.rng.random() < 0.5
                    saved = change.bookmark if after else feed.bookmark
                    run.bookmarks[self.name] = (
                        saved.to_json(),
                        dict(tally.parts) if after else before,
                    )
                if self.rng.random() < 0.1:
                    self.actor.env.clock.sleep(self.rng.choice((0.5, 30.0)))
                if self.rng.random() < 0.03:
                    return  # it stops early
        except SnapshotExpired as error:
            tally.expired(error)
            run.note(self.actor, "its place was collected; begins anew")
            run.bookmarks.pop(self.name, None)
            return
        tally.stands(feed.bookmark.positions)
        run.bookmarks[self.name] = (feed.bookmark.to_json(), dict(tally.parts))
        if not follow:
            tally.ended(low)
        run.judge.counts["feeds"] += 1

    def _got(self, tally: Tally, change: Change) -> None:
        rows = rows_of(change.batch)
        if change.kind == "delete" and not all(row[-1] for row in rows):
            raise Violation("R", f"a delete brings {rows}")
        tally.handed(change.shard, change.position, rows)

    def tail(self, *, until: int = 0) -> None:
        """Tail some entries of one shard's log."""
        run, rng = self.run, self.rng
        shards = sorted(run.judge.shards, key=str)
        if not shards:
            return
        shard = rng.choice(shards)
        tip = run.judge.truth(shard).tip
        start = rng.choice((None, rng.randint(1, tip + 1)))
        if run.judge.truth(shard).again:
            start = rng.choice(run.judge.truth(shard).again)  # as if it had stood there all along
        tally = Tally(run, None if start is None else {shard: start - 1}, keys_of_deletes=False)
        low, fences = run.judge.truth(shard).acked, rng.random() < 0.5
        tailer = WalTailer(self.table.core.log(shard), start, fences=fences)
        follow = rng.random() < 0.5
        entries: Iterable[WalEntry] = tailer
        if follow:
            entries = tailer.follow(0.05, stop=lambda: run.scheduler.step > until)
        run.note(self.actor, f"tails {str(shard)[:4]} from {start}")
        try:
            for entry in entries:
                rows = [row for batch in entry.batches for row in rows_of(batch)]
                tally.handed(shard, int(entry.position), rows)
                tally.settle()
            tally.stands({shard: int(tailer.position) - 1})
            if not follow:
                tally.ended({shard: low})
        except SnapshotExpired as error:
            tally.expired(error)
        self._read_one(tailer, shard, rng.randint(1, tip + 2), tip)
        run.judge.counts["tails"] += 1

    def _read_one(self, tailer: WalTailer, shard: UUID, position: int, tip: int) -> None:
        try:
            entry = tailer.read(position)
        except SnapshotExpired as error:
            if position > floor_of(self.run, shard):
                raise Violation("T", f"position {position} was not collected: {error}") from error
            return
        if entry is None:
            if position <= tip:
                raise Violation("D", f"position {position} is read as not there yet")
            return
        known = self.run.judge.truth(shard).log.get(position)
        rows = [row for batch in entry.batches for row in rows_of(batch)]
        if known is None or rows != known.rows:
            raise Violation("R", f"position {position} is read as {rows}, and is {known}")


def _without(bookmark: Bookmark, tally: Tally, change: Change) -> dict[UUID, int]:
    """The bookmark's positions; it must not pass the change in hand."""
    if bookmark.positions.get(change.shard, 0) >= change.position:
        raise Violation("A", f"the bookmark {bookmark} passes the change in hand, {change}")
    held = {shard: tally.at.get(shard) for shard in bookmark.positions}
    return {s: p for s, p in bookmark.positions.items() if held[s] is not None or p}


def consumer(run: Run, actor: Actor, role: Role) -> None:
    """Reads the feed again and again, like a program that is stopped and restarted."""
    one = Consumer(run, actor)
    for _ in range(role.ops):
        until = run.scheduler.step + one.rng.choice((20, 100, 400, 1500))
        try:
            if role.kind == "tailer":
                one.tail(until=until)
            else:
                one.read(follow=one.rng.random() < 0.5, until=until)
        except StoreError as error:
            run.note(actor, f"a feed failed: {type(error).__name__}")
        except WeirError as error:
            run.judge.failed(SHARD, error, None, 0)
        actor.env.clock.sleep(one.rng.choice((0.02, 0.5, 5.0)))


def spark_consumer(run: Run, actor: Actor, role: Role) -> None:
    """A Spark query over the feed."""
    from simulator.spark_feeds import Query  # imported when the plan was drawn

    query = Query(run, actor, role)
    for _ in range(role.ops):
        query.trigger()
        actor.env.clock.sleep(query.rng.choice((0.02, 0.5, 5.0)))


def final_of_feeds(run: Run, actor: Actor) -> None:
    """On a healthy store every consumer gets to the end, or an error says why not."""
    final_of_reshards(run, actor)
    for name in sorted(run.bookmarks):
        one = Consumer(run, actor)
        one.name = name
        one.read(follow=False)
    fresh = Consumer(run, actor)
    fresh.name = "fresh"
    fresh.read(follow=False)
    from simulator.spark_feeds import finish  # imported when the plan was drawn

    finish(run, actor)


FEEDS = {"consumer": consumer, "tailer": consumer, "spark-consumer": spark_consumer}

"""Spark's change feed in a simulated history: its planning and reading, without Spark around it.

A query keeps the offsets of its batches and which of them are done, as Spark's checkpoint does. The
process that continues it after a death runs the unfinished batch again, with the same rows (P-3).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from simulator.feeds import Seen, as_seen, floor_of
from simulator.scenarios import COLUMNS, SHARD, TABLE, Role, Run
from simulator.scheduler import Actor
from simulator.truth import Violation
from weir.errors import SnapshotExpired, StoreError, WeirError
from weir.making import open as open_table
from weir.spark.feed import Offset, WeirFeed
from weir.spark.feed_offsets import positions_of
from weir.spark.feed_schema import feed_schema
from weir.spark.places import Place
from weir.table import Table

BATCHES_MAX: Final = 200


@dataclass
class Progress:
    """What Spark's checkpoint of a query holds."""

    options: dict[str, str]
    start: Offset | None = None
    """The offset through which batches are done."""
    end: Offset | None = None
    """The end of the batch under way."""


class Held(Place):
    """A table that is open in this process."""

    table: Table

    def __init__(self, table: Table) -> None:
        super().__init__(table.uri)
        object.__setattr__(self, "table", table)

    def current(self) -> Table:
        """That table, with its record as it is now."""
        self.table.core.refresh()
        return self.table

    def planned(self, table_id: UUID | str) -> Table:
        """That table: none takes its place in a history."""
        assert str(self.table.core.record.table_id) == str(table_id)
        return self.table


class Query:
    """One process that runs a query."""

    def __init__(self, run: Run, actor: Actor, role: Role) -> None:
        self.run, self.actor = run, actor
        self.name = actor.name.rstrip("'")
        self.rng = random.Random(f"query/{run.plan.seed}/{actor.name}")
        if self.name not in run.queries:
            run.queries[self.name] = Progress(_options(self.rng, self.name))
        self._feed: WeirFeed | None = None

    @property
    def progress(self) -> Progress:
        """Its checkpoint."""
        found: Progress = self.run.queries[self.name]
        return found

    @property
    def feed(self) -> WeirFeed:
        """The feed as this process holds it."""
        if self._feed is None:
            table = open_table(TABLE, env=self.actor.env)
            self._feed = WeirFeed(self.progress.options, feed_schema(table), place=Held(table))
        return self._feed

    def trigger(self) -> bool:
        """Run one batch, if there is anything to read; False if there is not, or if it failed."""
        try:
            return self._batch()
        except SnapshotExpired as error:
            self._expired(error)
        except StoreError as error:
            self.run.note(self.actor, f"a batch failed: {type(error).__name__}")
        except WeirError as error:
            self.run.judge.failed(SHARD, error, None, 0)
        return False

    def _batch(self, *, whole: bool = False) -> bool:
        run, feed, now = self.run, self.feed, self.progress
        if now.start is None:
            now.start = feed.initialOffset()
        if now.end is None:
            limit = ReadAllAvailable() if whole else feed.getDefaultReadLimit()
            end = feed.latestOffset(now.start, limit)
            if end == now.start:
                return False
            now.end = end
        start, last = positions_of(now.start), positions_of(now.end)
        run.note(self.actor, f"reads a batch to {sorted(last.values())}")
        left = dict(last)
        for part in feed.partitions(now.start, now.end):
            self._read(part)
            shard, after, through = _range(part)
            if start.get(shard, 0) != after or left.pop(shard) != through:
                raise Violation("D", f"a batch from {start} to {last} reads {part.value}")
        for shard, through in left.items():
            if _rows(run, shard, start.get(shard, 0), through):
                raise Violation("D", f"a batch from {start} to {last} leaves {shard} out")
        now.start, now.end = now.end, None
        feed.commit(now.start)
        run.judge.counts["batches fed"] += 1
        return True

    def _read(self, part: InputPartition) -> None:
        shard, after, last = _range(part)
        want = _rows(self.run, shard, after, last)
        for _ in range(self.rng.choice((1, 1, 2))):  # Spark may run a task twice
            got = [row for batch in self.feed.read(part) for row in _handed(batch)]
            if got != want:
                raise Violation("R", f"Spark is fed {got} from {after} to {last}, not {want}")
        self.run.judge.counts["entries fed"] += last - after

    def _expired(self, error: SnapshotExpired) -> None:
        run, now = self.run, self.progress
        run.note(self.actor, f"a query is told that entries were collected: {error}")
        at = {} if now.start is None else positions_of(now.start)
        if not any(floor_of(run, shard) > at.get(shard, 0) for shard in run.judge.shards):
            raise Violation("T", f"nothing that the query has not read was collected: {error}")
        if "consumer" in now.options and now.start is not None:
            raise Violation("C", f"what a named consumer has not read was collected: {error} (P-3)")
        run.judge.counts["queries told of collection"] += 1
        run.queries[self.name] = Progress(_options(self.rng, None))
        self._feed = None


def _options(rng: random.Random, name: str | None) -> dict[str, str]:
    """Options of a query; a named one may be a consumer, for which entries are kept."""
    # From the log alone: the judge knows entries, and a snapshot has none.
    found = {"path": TABLE, "metadatacolumns": "true", "startingoffsets": "earliest"}
    limit = rng.choice((None, "maxentriespertrigger", "maxbytespertrigger"))
    if limit is not None:
        found[limit] = str(rng.choice((1, 3) if limit == "maxentriespertrigger" else (1, 4000)))
    if name is not None and rng.random() < 0.5:
        found["consumer"] = name
    return found


def _range(part: InputPartition) -> tuple[UUID, int, int]:
    value: dict[str, Any] = part.value
    return UUID(value["shard"]), value["after"], value["last"]


def _rows(run: Run, shard: UUID, after: int, last: int) -> list[Seen]:
    log = run.judge.truth(shard).log
    return [
        (*as_seen(row, keys_of_deletes=True), position)
        for position in range(after + 1, last + 1)
        if position in log
        for row in log[position].rows
    ]


def _handed(batch: Any) -> list[Seen]:
    columns = [batch.column(name).to_pylist() for name in (*COLUMNS, "_change", "_position")]
    return [
        (row[0], True, row[-1]) if row[-2] == "delete" else (*row[:-2], False, row[-1])
        for row in zip(*columns, strict=True)
    ]


def finish(run: Run, actor: Actor) -> None:
    """On a healthy store every query gets to the end of every log, or an error says why not."""
    for name in sorted(run.queries):
        query = Query(run, actor, Role("final"))
        query.name = name
        for _ in range(BATCHES_MAX):
            if not query.trigger():
                break
        else:
            raise Violation("P", f"{name} is fed without end")
        start = query.progress.start
        behind = (
            {}
            if start is None
            else {s for s, t in run.judge.shards.items() if positions_of(start).get(s, 0) < t.tip}
        )
        if behind:
            raise Violation("D", f"{name} is fed through {start}, and is behind in {behind}")

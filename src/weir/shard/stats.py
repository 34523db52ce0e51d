"""Statistics of a writer: typed, cheap, true at every moment."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weir.log.appender import WalAppender
    from weir.shard.ack import Ack
    from weir.shard.state import WriterState

_LATENCIES_KEPT = 1024


@dataclass(frozen=True)
class WalStats:
    """The log side of a writer."""

    epoch: int
    fence_position: int
    next_position: int
    """Where the next entry will go; true also right after opening."""
    durable_position: int
    """The last position known durable, the fence included."""
    entries: int
    rows: int
    bytes: int
    append_failures: int
    """Appends that failed and were retried."""
    group_rows_mean: float
    """Rows per entry."""
    group_puts_mean: float
    """Puts per entry: how much group commit saves."""
    append_p50_seconds: float
    append_p99_seconds: float
    queued_puts_bytes: int
    """Bytes of rows accepted and not yet durable."""


@dataclass(frozen=True)
class MemtableStats:
    """The MemTable side of a writer."""

    generation: int
    rows: int
    batches: int
    bytes: int
    frozen: int
    """MemTables waiting for their flush or in it."""
    unflushed_bytes: int
    flushes: int
    flush_failures: int
    flushed_rows: int
    flush_seconds: float


@dataclass(frozen=True)
class WriterStats:
    """Everything a writer counts since it was opened."""

    shard: str
    mode: str
    wal: WalStats
    memtable: MemtableStats | None
    puts: int
    rows_put: int
    """Rows accepted, deletes included."""
    rows_deleted: int
    """Deletes among them, by whichever verb."""
    backpressure_waits: int
    backpressure_seconds: float
    held_bytes: int
    replayed_entries: int
    replayed_rows: int
    replay_seconds: float


@dataclass
class Counters:
    """The running counts behind the statistics; changed by the leader or under the writer's
    lock."""

    puts: int = 0
    rows_put: int = 0
    rows_deleted: int = 0
    entries: int = 0
    entry_rows: int = 0
    entry_puts: int = 0
    append_failures: int = 0
    backpressure_waits: int = 0
    backpressure_seconds: float = 0.0
    flushes: int = 0
    flush_failures: int = 0
    flushed_rows: int = 0
    flush_seconds: float = 0.0
    replayed_entries: int = 0
    replayed_rows: int = 0
    replay_seconds: float = 0.0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES_KEPT))

    def appended(self, group: Sequence[Ack], seconds: float) -> None:
        """Count an entry that landed."""
        self.entries += 1
        self.entry_puts += len(group)
        self.entry_rows += sum([ack.rows for ack in group])
        self.latencies.append(seconds)

    def latency(self, quantile: float) -> float:
        """That quantile of the recent appends, 0.0 before the first."""
        recent = sorted(self.latencies)
        return recent[min(len(recent) - 1, int(quantile * len(recent)))] if recent else 0.0


def wal_stats(state: WriterState, appender: WalAppender) -> WalStats:
    """The log side of a writer as it is now."""
    c = state.counters
    return WalStats(
        epoch=appender.epoch,
        fence_position=appender.claim.fence,
        next_position=appender.next_position,
        durable_position=appender.next_position - 1,
        entries=c.entries,
        rows=c.entry_rows,
        bytes=appender.bytes_written,
        append_failures=c.append_failures,
        group_rows_mean=c.entry_rows / c.entries if c.entries else 0.0,
        group_puts_mean=c.entry_puts / c.entries if c.entries else 0.0,
        append_p50_seconds=c.latency(0.5),
        append_p99_seconds=c.latency(0.99),
        queued_puts_bytes=state.queued_bytes,
    )


def memtable_stats(state: WriterState) -> MemtableStats | None:
    """The MemTable side as it is now; None on a WAL-only writer."""
    c = state.counters
    with state.lock:
        memtables = state.memtables
        if memtables is None:
            return None
        return MemtableStats(
            generation=memtables.active.generation,
            rows=memtables.active.rows,
            batches=memtables.active.puts,
            bytes=memtables.active.nbytes,
            frozen=len(memtables.frozen),
            unflushed_bytes=memtables.unflushed_bytes(),
            flushes=c.flushes,
            flush_failures=c.flush_failures,
            flushed_rows=c.flushed_rows,
            flush_seconds=c.flush_seconds,
        )


def writer_stats(state: WriterState, appender: WalAppender) -> WriterStats:
    """Everything in one value."""
    c = state.counters
    memtable = memtable_stats(state)
    return WriterStats(
        shard=str(appender.site.shard),
        mode="memtable" if memtable else "wal-only",
        wal=wal_stats(state, appender),
        memtable=memtable,
        puts=c.puts,
        rows_put=c.rows_put,
        rows_deleted=c.rows_deleted,
        backpressure_waits=c.backpressure_waits,
        backpressure_seconds=c.backpressure_seconds,
        held_bytes=state.held_bytes,
        replayed_entries=c.replayed_entries,
        replayed_rows=c.replayed_rows,
        replay_seconds=c.replay_seconds,
    )

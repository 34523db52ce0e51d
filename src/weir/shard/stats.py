"""What a writer tells about itself: typed, cheap, true at every moment (M-5)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weir.shard.ack import Ack

_LATENCIES_KEPT = 1024


@dataclass(frozen=True)
class WalStats:
    """The log side of a writer."""

    epoch: int
    fence_position: int
    next_position: int
    """Where the next entry will go; true also right after opening (M-5)."""
    durable_position: int
    """The last position known durable, the fence included."""
    entries: int
    rows: int
    bytes: int
    append_failures: int
    """Appends that failed and were tried again."""
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
    rows_deleted: int
    backpressure_waits: int
    backpressure_seconds: float
    held_bytes: int
    replayed_entries: int
    replayed_rows: int
    replay_seconds: float


@dataclass
class Counters:
    """The running counts behind the statistics; changed by the thread that leads or under the queue's lock."""

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
        self.entry_rows += sum(ack.rows for ack in group)
        self.latencies.append(seconds)

    def latency(self, quantile: float) -> float:
        """That quantile of the recent appends, 0.0 before the first."""
        recent = sorted(self.latencies)
        return recent[min(len(recent) - 1, int(quantile * len(recent)))] if recent else 0.0

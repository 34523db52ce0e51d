"""The registry of metrics: names, units, labels, bounds; what this process has counted; spans.

Nothing is counted until somebody asks (`Meters.is_on`), and then once for each log entry, request
or job, never once for each put. A label takes its values from a list in this file: no name of a
user's table, shard or error becomes one, so that the number of series is bounded.
docs/reference/metrics.md is made from this file, and a test compares them.
"""

from __future__ import annotations

import _thread
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeVar

T = TypeVar("T")
Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[str, ...]
Gauge = Callable[[], Mapping[Labels, float]]
"""Reads a gauge when it is asked for: by values of its labels."""

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LONG_SECONDS: Final = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
GROUPS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
TRIES: Final = (1.0, 2.0, 4.0, 8.0)
OTHER: Final = "other"
"""The value of a label in place of one that is not in its list."""

CACHES: Final = ("entries", "tails", "sstables", "bases", "keys", "rows")
HELD: Final = (
    "min_age",
    "checkpoint",
    "change feed consumer",
    "first entry of an epoch",
    "before an epoch without entries",
    "epoch not known",
    "native writer",
    "may still be published",
    "vetoed",
)
"""Why collection keeps objects that no read needs (`weir.upkeep.gc.plan`)."""
READS: Final = ("scan", "count", "get", "search")
JOBS: Final = ("flush", "compact", "checkpoint", "gc", "look", "find")
RESULTS: Final = ("succeeded", "failed", "waits", "damaged", "gone")
VERBS: Final = (
    "put_if_absent",
    "put",
    "put_parts",
    "get",
    "get_range",
    "head",
    "list_folder",
    "delete",
    "now",
)


@dataclass(frozen=True, eq=False)
class Metric:
    """One metric, as Prometheus names it."""

    name: str
    kind: Kind
    unit: str
    help: str
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The values that each label may have, besides `other`. None is named `job` or `instance`:
    Prometheus gives those to every series itself, and would rename ours."""
    buckets: tuple[float, ...] = ()


PUTS = Metric("weir_puts_total", "counter", "puts", "Puts that became durable.")
ROWS = Metric("weir_put_rows_total", "counter", "rows", "Rows that became durable.")
ENTRIES = Metric("weir_log_entries_total", "counter", "entries", "Log entries written.")
ENTRY_BYTES = Metric(
    "weir_log_entry_bytes_total", "counter", "bytes", "Bytes of the log entries written."
)
ENTRY_PUTS = Metric(
    "weir_log_entry_puts", "histogram", "puts", "Puts that shared an entry.", buckets=GROUPS
)
APPEND_SECONDS = Metric(
    "weir_log_append_seconds",
    "histogram",
    "seconds",
    "Time to make an entry durable, retries included.",
    buckets=SECONDS,
)
APPEND_FAILURES = Metric(
    "weir_log_append_failures_total",
    "counter",
    "attempts",
    "Attempts to write an entry that failed and were repeated.",
)
FENCED = Metric(
    "weir_writers_fenced_total", "counter", "writers", "Writers ended by a newer writer."
)
ENDED = Metric(
    "weir_writers_failed_total",
    "counter",
    "writers",
    "Writers ended by another error than a newer writer.",
)
BACKPRESSURE = Metric(
    "weir_backpressure_waits_total", "counter", "puts", "Puts that had to wait for memory."
)
BACKPRESSURE_SECONDS = Metric(
    "weir_backpressure_seconds_total",
    "counter",
    "seconds",
    "Time that puts waited for memory before they were accepted.",
)
WRITERS = Metric("weir_writers", "gauge", "writers", "Shard writers of this process that are open.")
HELD_BYTES = Metric(
    "weir_writer_held_bytes", "gauge", "bytes", "Rows that open writers hold in memory."
)
FLUSH_SECONDS = Metric(
    "weir_flush_seconds",
    "histogram",
    "seconds",
    "Time to make an SSTable of a MemTable and publish it.",
    buckets=LONG_SECONDS,
)
FLUSH_AGE = Metric(
    "weir_flush_age_seconds",
    "histogram",
    "seconds",
    "How long the oldest row of a MemTable was durable before its SSTable was published: then"
    " other programs, and reads of what is flushed, see it.",
    buckets=LONG_SECONDS,
)
FLUSH_ROWS = Metric("weir_flush_rows_total", "counter", "rows", "Rows flushed to SSTables.")
FLUSH_FAILURES = Metric(
    "weir_flush_failures_total",
    "counter",
    "attempts",
    "Attempts to flush that failed and were repeated.",
)
SNAPSHOT_SECONDS = Metric(
    "weir_snapshot_seconds",
    "histogram",
    "seconds",
    "Time to take the cut that a read begins with.",
    {"freshness": ("base", "flushed", "durable")},
    SECONDS,
)
SNAPSHOT_TRIES = Metric(
    "weir_snapshot_tries",
    "histogram",
    "tries",
    "Tries until a cut was taken while nothing moved; each is two rounds of requests.",
    buckets=TRIES,
)
READ_SECONDS = Metric(
    "weir_read_seconds",
    "histogram",
    "seconds",
    "Time of a whole read, its cut included; of a scan that is streamed, until its first batch.",
    {"verb": READS},
    SECONDS,
)
READ_ROWS = Metric(
    "weir_read_rows_total",
    "counter",
    "rows",
    "Rows that scans merged, by where they were: in the base, or in SSTables and logs (fresh).",
    {"level": ("base", "fresh")},
)
CACHE_LOOKUPS = Metric(
    "weir_cache_lookups_total",
    "counter",
    "lookups",
    "What reads looked for in memory, and whether it was there.",
    {"cache": CACHES, "result": ("hit", "miss")},
)
REQUEST_SECONDS = Metric(
    "weir_store_request_seconds",
    "histogram",
    "seconds",
    "Time of a call to the store, its own retries included.",
    {"verb": VERBS},
    SECONDS,
)
SINK_BATCHES = Metric(
    "weir_spark_sink_batches_total",
    "counter",
    "batches",
    "Micro-batches of streams into weir, of the Spark sessions that are measured.",
)
SINK_ROWS = Metric(
    "weir_spark_sink_rows_total", "counter", "rows", "Rows that those micro-batches read."
)
SINK_SECONDS = Metric(
    "weir_spark_sink_batch_seconds",
    "histogram",
    "seconds",
    "Time of such a micro-batch from its tasks to its commit.",
    buckets=LONG_SECONDS,
)
COMPACT_SECONDS = Metric(
    "weir_compact_seconds", "histogram", "seconds", "Time of a compaction.", buckets=LONG_SECONDS
)
COMPACT_ROWS = Metric("weir_compact_rows_total", "counter", "rows", "Rows folded into bases.")
GC_SECONDS = Metric(
    "weir_gc_seconds", "histogram", "seconds", "Time of a collection.", buckets=LONG_SECONDS
)
GC_OBJECTS = Metric("weir_gc_deleted_objects_total", "counter", "objects", "Objects collected.")
GC_BYTES = Metric("weir_gc_deleted_bytes_total", "counter", "bytes", "Bytes collected.")
KEEP_JOBS = Metric(
    "weir_keep_jobs_total",
    "counter",
    "jobs",
    "Jobs of upkeep that `weir keep` or Spark's `keep` did, and what became of them; looks at"
    " tables and searches for them, if they failed.",
    {"kind": JOBS, "result": RESULTS},
)
KEEP_PAUSED = Metric(
    "weir_keep_paused_seconds_total",
    "counter",
    "seconds",
    "Time that jobs waited for the policy's limits on requests and bytes a second.",
)
KEEP_TABLES = Metric("weir_keep_tables", "gauge", "tables", "Tables that this keeper looks after.")
KEEP_DAMAGED = Metric(
    "weir_keep_tables_damaged", "gauge", "tables", "Tables left alone because they are damaged."
)
KEEP_LEFT = Metric(
    "weir_keep_shards_left",
    "gauge",
    "shards",
    "Logs with old rows that are left alone because their writer may live.",
)
KEEP_SILENT = Metric(
    "weir_keep_jobs_silent",
    "gauge",
    "jobs",
    "Jobs that are due for longer than the policy's `silent_after`.",
    {"kind": JOBS},
)
KEEP_FAILING = Metric(
    "weir_keep_jobs_failing",
    "gauge",
    "jobs",
    "Jobs, looks at tables and searches for them whose last try failed.",
    {"kind": JOBS},
)
DEBT_ENTRIES = Metric(
    "weir_keep_debt_entries", "gauge", "entries", "Log entries that are in no SSTable."
)
DEBT_GENERATIONS = Metric(
    "weir_keep_debt_generations", "gauge", "SSTables", "SSTables that wait for compaction."
)
DEBT_UNREAD = Metric(
    "weir_keep_debt_unread_entries",
    "gauge",
    "entries",
    "Log entries that the slowest named consumer of a table has not read, summed over tables.",
)
DEBT_BYTES = Metric("weir_keep_debt_bytes", "gauge", "bytes", "Bytes of rows in those SSTables.")
DUE_SECONDS = Metric(
    "weir_keep_due_seconds",
    "gauge",
    "seconds",
    "For how long the job has been due that has waited longest.",
    {"kind": JOBS},
)
HELD_OBJECTS = Metric(
    "weir_keep_held_objects",
    "gauge",
    "objects",
    "Objects that no read needs, left by this keeper's last collections, by what holds them.",
    {"reason": HELD},
)

METRICS: Final = tuple(
    sorted((m for m in globals().values() if isinstance(m, Metric)), key=lambda m: m.name)
)


class Sink(Protocol):
    """Another place that gets every measurement (OpenTelemetry)."""

    def add(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        """A counter has grown, or a histogram got a value."""


PUT_GROUP: Final = "weir.put_group"
FLUSH: Final = "weir.flush"
COMPACT: Final = "weir.compact"
"""The spans; docs/reference/metrics.md says what each covers."""

Facts = Mapping[str, str | int | Sequence[str] | Sequence[int]]
"""What is said about a span: its attributes."""


class Tracer(Protocol):
    """A place that gets spans (OpenTelemetry)."""

    def span(self, name: str, seconds: float, facts: Facts, error: BaseException | None) -> None:
        """Something took so long, and ended just now: well, or with an error."""


class HasBoottime(Protocol):
    """A clock; `weir.env.Clock` is one."""

    def boottime(self) -> float:
        """Seconds on a clock that never goes back."""


@dataclass(slots=True)
class _Series:
    """One counter or histogram, for one set of labels."""

    counts: list[int]
    """How many values each bucket of a histogram got."""
    total: float = 0.0


_NONE: Final[Mapping[Labels, _Series]] = {}


class Meters:
    """What one process has measured. Safe to share between threads."""

    def __init__(self) -> None:
        self.is_on = False
        """False: nothing is measured, and nothing is spent on it."""
        self._lock = _thread.allocate_lock()
        self._series: dict[Metric, dict[Labels, _Series]] = {}
        self._gauges: dict[Metric, Gauge] = {}
        self._sinks: tuple[Sink, ...] = ()
        self._tracers: tuple[Tracer, ...] = ()

    def forked(self) -> None:
        """In a forked child: the thread that counted at that moment is none of its own."""
        self._lock = _thread.allocate_lock()

    def turn_on(self, *sinks: Sink) -> None:
        """Measure from now on, and tell `sinks` as well."""
        self._sinks = (*self._sinks, *sinks)
        self.is_on = True

    def turn_on_spans(self, tracer: Tracer) -> None:
        """Tell `tracer` of every log entry, flush and compaction from now on."""
        self._tracers = (*self._tracers, tracer)

    def timed(self, act: Callable[[], T], clock: HasBoottime, metric: Metric, *labels: str) -> T:
        """The result of `act`; the histogram gets the seconds that it took, also with an error."""
        if not self.is_on:
            return act()
        began = clock.boottime()
        try:
            return act()
        finally:
            self.add(metric, clock.boottime() - began, *labels)

    def traced(
        self, name: str, act: Callable[[], T], facts: Callable[[], Facts], clock: HasBoottime
    ) -> T:
        """The result of `act`, which is a span of that name if somebody asked for spans.

        `facts` is called when `act` has ended, also with an error.
        """
        if not self._tracers:
            return act()
        began = clock.boottime()
        failed: BaseException | None = None
        try:
            return act()
        except BaseException as error:
            failed = error
            raise
        finally:
            took, said = clock.boottime() - began, facts()
            for tracer in self._tracers:
                tracer.span(name, took, said, failed)

    def add(self, metric: Metric, value: float = 1, *labels: str) -> None:
        """Let a counter grow, or give a histogram a value."""
        if self.is_on:
            self.record((metric, value), labels=bounded(metric, labels))

    def record(self, *steps: tuple[Metric, float], labels: Labels = ()) -> None:
        """`add` for several metrics with the same labels, in one step: for log entries."""
        with self._lock:
            for metric, value in steps:
                series = self._series.get(metric, _NONE).get(labels)
                if series is None:
                    counts = [0] * (len(metric.buckets) + 1) if metric.buckets else []
                    series = self._series.setdefault(metric, {})[labels] = _Series(counts)
                series.total += value
                if series.counts:
                    series.counts[bisect_left(metric.buckets, value)] += 1
        for sink in self._sinks:
            for metric, value in steps:
                sink.add(metric, value, dict(zip(metric.labels, labels, strict=True)))

    def watch(self, metric: Metric, read: Gauge) -> None:
        """Read a gauge by that function from now on."""
        self._gauges[metric] = read

    def gauge(self, metric: Metric) -> Mapping[Labels, float]:
        """The values of a gauge now; none where nobody watches it."""
        read = self._gauges.get(metric)
        values: dict[Labels, float] = {}
        for labels, value in ({} if read is None else read()).items():
            known = bounded(metric, labels)
            values[known] = values.get(known, 0) + value
        return values

    def page(self) -> str:
        """Everything in the text format of Prometheus."""
        lines: list[str] = []
        for metric in METRICS:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
            lines += self._samples(metric)
        return "\n".join(lines) + "\n"

    def _samples(self, metric: Metric) -> list[str]:
        if metric.kind == "gauge":
            return [_line(metric.name, metric, at, v) for at, v in self.gauge(metric).items()]
        with self._lock:
            series = {
                at: (list(found.counts), found.total)
                for at, found in self._series.get(metric, _NONE).items()
            }
        if metric.kind == "counter":
            if not metric.labels:
                series.setdefault((), ([], 0))
            return [_line(metric.name, metric, at, total) for at, (_, total) in series.items()]
        lines = []
        for at, (counts, total) in series.items():
            below = 0
            for bound, count in zip((*metric.buckets, float("inf")), counts, strict=True):
                below += count
                text = "+Inf" if bound == float("inf") else f"{bound:g}"
                lines.append(_line(f"{metric.name}_bucket", metric, at, below, le=text))
            lines.append(_line(f"{metric.name}_sum", metric, at, total))
            lines.append(_line(f"{metric.name}_count", metric, at, below))
        return lines


def bounded(metric: Metric, labels: Labels) -> Labels:
    """The values of the labels, each from its list."""
    if not metric.labels:
        return ()
    return tuple(
        value if value in allowed else OTHER
        for value, allowed in zip(labels, metric.labels.values(), strict=True)
    )


def _line(name: str, metric: Metric, at: Labels, value: float, le: str | None = None) -> str:
    pairs = [f'{label}="{text}"' for label, text in zip(metric.labels, at, strict=True)]
    pairs += [] if le is None else [f'le="{le}"']
    number = f"{value:.17g}"
    return f"{name}{{{','.join(pairs)}}} {number}" if pairs else f"{name} {number}"

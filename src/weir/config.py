"""`WriterConfig`: the settings of a shard writer. Behaviour first, speed second, logging last.

The names are those of Lance's MemWAL: a table's stored defaults serve native writers too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from weir.durations import Duration, seconds
from weir.errors import InvalidInput

MiB = 1 << 20
FENCE_TTL: Final = 60.0
"""`fence_ttl` of a table that was made without one, in seconds."""


@dataclass(frozen=True)
class IndexConfig:
    """An index a MemTable writer maintains: the table's index `name` on `column`, of a Lance
    kind."""

    name: str
    """The index's name in the table."""
    column: str
    """The column it is on."""
    kind: str
    """"btree", "bitmap", "vector" or "text"."""
    metric: str = "l2"
    """Distance of a vector index: "l2", "cosine" or "dot"."""


@dataclass(frozen=True)
class WriterConfig:
    """Settings of a `ShardWriter`, checked at construction. One object may serve many writers."""

    enable_memtable: bool = True
    """True: rows also go to a MemTable (reads, flush to SSTables). False: WAL-only, the log is all
    there is (M-2)."""

    durable_write: bool = True
    """True: `put` returns when its rows survive the loss of this process. False: it returns when
    they are buffered; `flush_wal()` and `close()` are the durability points, and up to
    `max_wal_buffer_size` bytes or `max_wal_flush_interval` seconds of rows can be lost. Same in
    both modes."""

    max_wal_buffer_size: int = 10 * MiB
    """Maximum bytes of rows gathered into one WAL entry. With `durable_write=False` it is also the
    buffered amount that starts a write. A larger value means fewer requests and more to lose. Same
    in both modes."""

    max_wal_flush_interval: Duration = 0.1
    """Longest time a buffered row waits before its entry is written when `durable_write=False`;
    ignored otherwise (durable puts never wait for a timer). Same in both modes."""

    max_memtable_size: int = 256 * MiB
    """Bytes of one generation: a put that would exceed it begins the next. The MemTable is then
    frozen and flushed to an SSTable. WAL-only: entries are tagged with the next generation, which
    bounds the memory of a later replay. Capped, like the next two, by the table's own
    `writer_defaults` (F-15): any writer with those must be able to replay the shard."""

    max_memtable_rows: int = 100_000
    """Rows of one generation, in both modes. A larger single put gets a generation to itself."""

    max_memtable_batches: int = 8_000
    """Record batches of one generation, in both modes; a put has one or more."""

    max_memtable_age: Duration | None = 300.0
    """Longest time a row waits in the MemTable for more rows: then it is flushed to an SSTable by a
    thread of the writer's own, without a put. Every reader fetches entries that are in no SSTable
    one by one, and no other process may fold them while their writer lives; five minutes bound both
    and cost a shard with a trickle of rows twelve small SSTables an hour. None: never. WAL-only:
    ignored, since compaction folds such logs as they are."""

    max_unflushed_memtable_bytes: int = 1024 * MiB
    """Bytes of rows held in memory (waiting for the log, in MemTables, being flushed) at which puts
    wait (M-6). WAL-only: the bound on the queue of rows not yet durable."""

    index_configs: tuple[IndexConfig, ...] = ()
    """Indexes kept on fresh rows. Empty: those the table maintains. WAL-only: must be empty."""

    sync_indexed_write: bool = True
    """True: puts index their rows, a thousand at a time. False: the next search does, and misses
    none. WAL-only: ignored."""

    async_index_buffer_rows: int = 10_000
    """For pylance's writers, which index in the background. Here: ignored."""

    async_index_interval: Duration = 1.0
    """For pylance's writers, which index in the background. Here: ignored."""

    fence_ttl: Duration | None = None
    """Maximum age of the proof of ownership when a put is acknowledged (G-7b). 0 proves it after
    every put, at two small reads each. None: the table's own setting, which is 60 s unless it was
    created with another; a larger value is refused. Same in both modes."""

    backpressure_log_interval: Duration = 30.0
    """Minimum time between log lines about waiting puts. Same in both modes."""

    stats_log_interval: Duration = 60.0
    """Time between log lines with statistics while rows arrive; 0 turns them off. Same in both
    modes."""

    def __post_init__(self) -> None:
        if self.fence_ttl is not None:
            object.__setattr__(self, "fence_ttl", seconds(self.fence_ttl, name="fence_ttl"))
        if self.max_memtable_age is not None:
            age = seconds(self.max_memtable_age, name="max_memtable_age")
            if not age:
                raise InvalidInput(
                    "WriterConfig.max_memtable_age must be above 0; None turns it off"
                )
            object.__setattr__(self, "max_memtable_age", age)
        for name in ("max_wal_flush_interval", "async_index_interval"):
            object.__setattr__(self, name, seconds(getattr(self, name), name=name))
        for name in ("backpressure_log_interval", "stats_log_interval"):
            object.__setattr__(self, name, seconds(getattr(self, name), name=name))
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise InvalidInput(
                    f"WriterConfig.{name} must be True or False, got {getattr(self, name)!r}"
                )
        object.__setattr__(self, "index_configs", _index_configs(self.index_configs))
        for name in _COUNTS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInput(
                    f"WriterConfig.{name} must be a whole number above 0, got {value!r}"
                )
        if not self.enable_memtable and self.index_configs:  # guard: M-2
            raise InvalidInput(
                "WriterConfig: index_configs must be empty when enable_memtable=False; a WAL-only"
                " writer has no MemTable to index"
            )
        if self.max_unflushed_memtable_bytes < self.max_wal_buffer_size:
            raise InvalidInput(
                "WriterConfig: max_unflushed_memtable_bytes must be at least max_wal_buffer_size"
                f" ({self.max_wal_buffer_size}), got {self.max_unflushed_memtable_bytes}"
            )

    def within(self, stored: WriterConfig) -> WriterConfig:
        """These settings, with generations no larger than the table's `stored` ones."""
        least = {n: min(getattr(self, n), getattr(stored, n)) for n in _GENERATION_BOUNDS}
        return replace(self, **least)

    @property
    def flush_interval_s(self) -> float:
        """`max_wal_flush_interval` in seconds."""
        return seconds(self.max_wal_flush_interval)

    @property
    def memtable_age_s(self) -> float | None:
        """`max_memtable_age` in seconds; None: rows may wait for ever."""
        return None if self.max_memtable_age is None else seconds(self.max_memtable_age)

    @property
    def stats_log_interval_s(self) -> float:
        """`stats_log_interval` in seconds."""
        return seconds(self.stats_log_interval)

    @property
    def fence_ttl_s(self) -> float:
        """`fence_ttl` in seconds, where these are the settings of a table."""
        return FENCE_TTL if self.fence_ttl is None else seconds(self.fence_ttl)

    def to_lance(self) -> dict[str, object]:
        """The settings Lance's MemWAL index can store, under its names."""
        return {
            "durable_write": self.durable_write,
            "max_wal_buffer_size": self.max_wal_buffer_size,
            "max_wal_flush_interval_ms": max(1, round(self.flush_interval_s * 1000)),
            "max_memtable_size": self.max_memtable_size,
            "max_memtable_rows": self.max_memtable_rows,
            "max_memtable_batches": self.max_memtable_batches,
            "max_unflushed_memtable_bytes": self.max_unflushed_memtable_bytes,
            "backpressure_log_interval_ms": round(seconds(self.backpressure_log_interval) * 1000),
            "stats_log_interval_ms": round(seconds(self.stats_log_interval) * 1000),
        }

    @staticmethod
    def from_lance(stored: Mapping[str, str]) -> WriterConfig:
        """The generation bounds stored in Lance's MemWAL index; the defaults for all else."""
        known: dict[str, Any] = {
            n: int(stored[n]) for n in _GENERATION_BOUNDS if stored.get(n, "").isdigit()
        }
        return replace(WriterConfig(), **known)

    def to_record(self) -> dict[str, object]:
        """As JSON-ready values, for the table's record."""
        record = {f.name: getattr(self, f.name) for f in fields(self)}
        record["fence_ttl"] = self.fence_ttl_s
        record["index_configs"] = [
            {g.name: getattr(c, g.name) for g in fields(c)} for c in self.index_configs
        ]
        return record

    @staticmethod
    def from_record(record: Mapping[str, object]) -> WriterConfig:
        """Read back from a record; `ValueError` for settings that this release does not know."""
        values: dict[str, Any] = dict(record)
        try:
            values["index_configs"] = tuple(IndexConfig(**c) for c in values["index_configs"])
            return WriterConfig(**values)
        except (KeyError, TypeError) as error:
            raise ValueError(f"writer_defaults: {error}") from error


def chosen_config(given: WriterConfig | None, otherwise: WriterConfig) -> WriterConfig:
    """The settings that a caller gave; the others where that was None."""
    if given is None:
        return otherwise
    if not isinstance(given, WriterConfig):
        raise InvalidInput(
            f"settings of a writer are a weir.WriterConfig(...), or None for the table's, got"
            f" {given!r}"
        )
    return given


def _index_configs(given: object) -> tuple[IndexConfig, ...]:
    configs = tuple(given) if isinstance(given, Iterable) else (given,)
    for config in configs:
        if not isinstance(config, IndexConfig):
            raise InvalidInput(f"WriterConfig.index_configs takes IndexConfig, got {config!r}")
    return configs


_FLAGS = ("enable_memtable", "durable_write", "sync_indexed_write")
_GENERATION_BOUNDS = ("max_memtable_size", "max_memtable_rows", "max_memtable_batches")
_COUNTS = (
    "max_wal_buffer_size",
    "max_memtable_size",
    "max_memtable_rows",
    "max_memtable_batches",
    "max_unflushed_memtable_bytes",
    "async_index_buffer_rows",
)

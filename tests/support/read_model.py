"""A table, and a model of dicts with the rows that it must hold at each level of freshness.

`History` applies random operations to a real table and compares random reads after each of them;
one seed determines all of it. A writer that dies in an operation leaves each shard in one of two
states, the old or the new, and a read of the table shows which.
"""

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

import weir
from weir.errors import WeirError
from weir.format.bucket import bucket
from weir.read.snapshot import Freshness
from weir.testing.fault_store import FaultStore

LEVELS: tuple[Freshness, ...] = ("base", "flushed", "durable")
Row = dict[str, Any]

WORDS = ["", "a", "b\0", "é", "日本", "it's", "x%_", "long" * 9]
BYTES = [w.encode() for w in WORDS]
KINDS: dict[str, list[tuple[pa.DataType, list[Any]]]] = {
    "int8": [(pa.int8(), [-128, -1, 0, 1, 2, 3, 4, 127])],
    "int16": [(pa.int16(), [-(2**15), -1, 0, 1, 2, 3, 4, 2**15 - 1])],
    "int32": [(pa.int32(), [-(2**31), -1, 0, 1, 2, 3, 4, 2**31 - 1])],
    "int64": [(pa.int64(), [-(2**63), -1, 0, 1, 2, 3, 4, 2**63 - 1])],
    "uint8": [(pa.uint8(), [0, 1, 2, 3, 4, 127, 128, 255])],
    "uint16": [(pa.uint16(), [0, 1, 2, 3, 4, 2**15, 2**16 - 1])],
    "uint32": [(pa.uint32(), [0, 1, 2, 3, 4, 2**31, 2**32 - 1])],
    "uint64": [(pa.uint64(), [0, 1, 2, 3, 2**63 - 1, 2**63, 2**64 - 1])],
    "bool": [(pa.bool_(), [False, True])],
    "utf8": [(pa.utf8(), WORDS)],
    "large_utf8": [(pa.large_utf8(), WORDS)],
    "binary": [(pa.binary(), BYTES)],
    "large_binary": [(pa.large_binary(), BYTES)],
    "int32+utf8": [(pa.int32(), [0, 1, 2]), (pa.utf8(), ["", "a", "b"])],
    "binary+bool": [(pa.binary(), BYTES[:4]), (pa.bool_(), [False, True])],
    "uint64+int8+large_utf8": [
        (pa.uint64(), [0, 2**64 - 1]),
        (pa.int8(), [-1, 1]),
        (pa.large_utf8(), ["", "a"]),
    ],
    "append-only": [],
}
PAYLOAD = [
    pa.field("x", pa.int64()),
    pa.field("s", pa.utf8()),
    pa.field("t", pa.timestamp("us")),
    pa.field("p", pa.struct([("a", pa.int64())])),
]
_STAMPS = [dt.datetime(2026, 1, day) for day in (1, 2, 3)]  # noqa: DTZ001  no time zone
SWITCH = 0.35
"""The probability that a compaction dies; a writer dies in an operation half as often."""


@dataclass(frozen=True)
class Predicate:
    """One filter in three forms. A comparison with null is false, as at the top of a filter."""

    sql: str
    expression: Any
    holds: Callable[[Row], bool]

    def __and__(self, other: "Predicate") -> "Predicate":
        return Predicate(
            f"({self.sql}) and ({other.sql})",
            self.expression & other.expression,
            lambda row: self.holds(row) and other.holds(row),
        )

    def __or__(self, other: "Predicate") -> "Predicate":
        return Predicate(
            f"({self.sql}) or ({other.sql})",
            self.expression | other.expression,
            lambda row: self.holds(row) or other.holds(row),
        )


def _above(n: int) -> Predicate:
    return Predicate(
        f"x > {n}", pc.field("x") > n, lambda row: row["x"] is not None and row["x"] > n
    )


def _text(word: str) -> Predicate:
    return Predicate(f"s = '{word}'", pc.field("s") == word, lambda row: bool(row["s"] == word))


LEAVES = [
    *map(_above, range(7)),
    *map(_text, ("ab", "b", "x%_")),
    Predicate("x is null", pc.field("x").is_null(), lambda row: row["x"] is None),
    Predicate("x in (1, 2, 5)", pc.field("x").isin([1, 2, 5]), lambda row: row["x"] in (1, 2, 5)),
    Predicate(
        "s like 'a%'",
        pc.match_like(pc.field("s"), "a%"),
        lambda row: (row["s"] or "").startswith("a"),
    ),
    Predicate(
        "t >= timestamp '2026-01-02 00:00:00'",
        pc.field("t") >= pa.scalar(_STAMPS[1], pa.timestamp("us")),
        lambda row: row["t"] is not None and row["t"] >= _STAMPS[1],
    ),
    Predicate(
        "p.a < 2",
        pc.field("p", "a") < 2,
        lambda row: bool(row["p"]) and row["p"]["a"] is not None and row["p"]["a"] < 2,
    ),
]


def draw_predicate(rng: random.Random) -> Predicate | None:
    """None, one comparison, or several combined."""
    if rng.random() < 0.2:
        return None
    found = rng.choice(LEAVES)
    for _ in range(rng.choice((0, 0, 1, 2))):
        other = rng.choice(LEAVES)
        found = found & other if rng.random() < 0.5 else found | other
    return found


def _sharding(rng: random.Random, key: list[pa.Field]) -> Any:
    """1 to 8 shards, in a way that the type of a key column allows."""
    column = rng.choice(key) if key else PAYLOAD[0]
    num = rng.randint(1, 8)
    choices: list[Any] = [weir.Unsharded()]
    try:
        bucket(pa.array([], column.type), num)
        choices = [weir.Bucket(column.name, num)] * 3 if num > 1 else choices
    except WeirError:
        choices += [weir.Identity(column.name)] if pa.types.is_boolean(column.type) else []
    if pa.types.is_string(column.type) and column in key:
        choices.append(weir.Identity(column.name))
    return rng.choice(choices)


@dataclass
class History:
    """One table, its model, and random operations; `examples` counts the reads compared."""

    uri: str
    kind: str
    seed: int
    examples: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.kind}/{self.seed}")
        self.domains = [values for _, values in KINDS[self.kind]]
        fields = [pa.field(f"k{i}", t, nullable=False) for i, (t, _) in enumerate(KINDS[self.kind])]
        self.key = [f.name for f in fields]
        self.schema = pa.schema([*fields, *PAYLOAD])
        sharding = _sharding(self.rng, fields)
        self.told.append(f"{self.kind} seed {self.seed} {sharding}")
        self.table = weir.create(
            self.uri, self.schema, primary_key=self.key or None, sharding=sharding
        )
        self.reader = weir.open(self.uri)
        self.levels: dict[str, dict[UUID, dict[Any, Row]]] = {level: {} for level in LEVELS}
        self.writer: weir.TableWriter | None = None
        self.faults: FaultStore | None = None
        self.serial = 0
        self.abandoned: list[weir.TableWriter] = []

    # -- operations ----------------------------------------------------------------------------

    def step(self) -> None:
        """One random operation, which the writer may not survive."""
        weights: dict[Callable[[], None], float] = {
            self.put: 6,
            self.flush: 3,
            self.compact: 2,
            self.crash: 1,
            self.close: 1,
            self.look_anew: 0.5,
        }
        if self.key:
            weights[self.delete] = 3
        [operation] = self.rng.choices(list(weights), list(weights.values()))
        self.told.append(operation.__name__)
        operation()

    def put(self) -> None:
        """Put some rows; of rows with the same key, the last one wins."""
        self._write([self._row() for _ in range(self.rng.randint(1, 5))], dead=False)

    def delete(self) -> None:
        """Delete some keys, existing or not."""
        self._write([self._key() for _ in range(self.rng.randint(1, 3))], dead=True)

    def flush(self) -> None:
        """Flush the open shards."""
        writer = self._open()
        shards = list(writer.shard_writers())
        self._may_die(writer.flush, "flushed", {s: dict(self._of("durable", s)) for s in shards})

    def close(self) -> None:
        """Flush and close the open shards."""
        writer = self._open()
        shards = list(writer.shard_writers())
        self._may_die(writer.close, "flushed", {s: dict(self._of("durable", s)) for s in shards})
        self.writer = None

    def compact(self) -> None:
        """Fold every published SSTable into the base, as another process would."""
        table, faults = self._process()
        if self.rng.random() < SWITCH:
            self._die_soon(faults)
        self._attempt(lambda: table.compact(lease=0), faults)  # the previous one may be dead
        after = {shard: dict(rows) for shard, rows in self.levels["flushed"].items()}
        self._decide("base", after, faults)

    def crash(self) -> None:
        """Abandon the writer; the next one fences it and replays its log."""
        if self.writer is not None:
            self.abandoned.append(self.writer)
        self.writer = None

    def look_anew(self) -> None:
        """Replace the reader by a new one with empty caches."""
        self.reader = weir.open(self.uri)

    def finish(self) -> None:
        """Close all writers."""
        self.crash()
        for writer in self.abandoned:
            self._attempt(writer.close, None)

    # -- comparisons ---------------------------------------------------------------------------

    def check(self) -> None:
        """One random read of one random level."""
        level = self.rng.choice((*LEVELS, "durable"))
        rows = self.rows(level)
        if self.key and self.rng.random() < 0.25:
            self._check_get(level, rows)
            return
        columns = self.rng.choice((None, self._columns()))
        predicate = draw_predicate(self.rng)
        passing = [r for r in rows if predicate is None or predicate.holds(r)]
        given = None
        if predicate is not None:
            given = self.rng.choice((predicate.sql, predicate.sql, predicate.expression))
        scan = self.reader.scan(columns=columns, filter=given, freshness=level)
        self.told.append(f"  scan {level} {columns} {given}")
        if self.rng.random() < 0.25:
            assert scan.count() == len(passing), self.told
            self.examples["count"] += 1
        else:
            wanted = [{c: r[c] for c in (columns or self.schema.names)} for r in passing]
            assert _same(scan.to_table().to_pylist(), wanted), self.told
            self.examples[level] += 1
        self.told.pop()

    def check_all(self) -> None:
        """Compare a full scan at every level."""
        for level in LEVELS:
            found = self.reader.scan(freshness=level).to_table().to_pylist()
            assert _same(found, self.rows(level)), (level, self.told)
            self.examples[level] += 1

    def rows(self, level: Freshness) -> list[Row]:
        """The rows that a read at that level must return."""
        return [row for rows in self.levels[level].values() for row in rows.values()]

    def _check_get(self, level: Freshness, rows: list[Row]) -> None:
        asked = [self._key() for _ in range(self.rng.randint(1, 5))]
        columns = self.rng.choice((None, self._columns()))
        truth = {self._key_of(r): r for r in rows}
        order = dict.fromkeys(self._key_of(k) for k in asked)
        names = columns or self.schema.names
        wanted = [{c: truth[k][c] for c in names} for k in order if k in truth]
        for _ in range(self.rng.choice((1, 1, 3))):  # the third read is served from memory
            found = self.reader.get(asked, columns=columns, freshness=level).to_pylist()
            assert found == wanted, (self.told, level, columns, asked)
        self.examples["get"] += 1

    # -- helpers -------------------------------------------------------------------------------

    def _key(self) -> Row:
        values = [self.rng.choice(domain) for domain in self.domains]
        return dict(zip(self.key, values, strict=True))

    def _row(self) -> Row:
        rng = self.rng
        return self._key() | {
            "x": rng.choice((None, *range(7))),
            "s": rng.choice((None, "ab", "b", "a", "x%_")),
            "t": rng.choice((None, *_STAMPS)),
            "p": rng.choice((None, {"a": None}, *({"a": n} for n in range(4)))),
        }

    def _columns(self) -> list[str]:
        names = self.schema.names
        return self.rng.sample(names, self.rng.randint(1, len(names)))

    def _key_of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.key)

    def _of(self, level: Freshness, shard: UUID) -> dict[Any, Row]:
        return self.levels[level].setdefault(shard, {})

    def _shard_of(self, row: Row) -> UUID:
        full = dict.fromkeys(self.schema.names) | row
        [(value, _)] = self.table.core.router.values(pa.Table.from_pylist([full], self.schema))
        return self.table.core.route(value)

    def _process(self) -> tuple[weir.Table, FaultStore]:
        table = weir.open(self.uri)
        faults = FaultStore(table.core.store)
        table.core.store = table.core.wal = faults
        return table, faults

    def _open(self) -> weir.TableWriter:
        if self.writer is None:
            table, self.faults = self._process()
            self.writer = table.writer()
        return self.writer

    def _die_soon(self, faults: FaultStore) -> None:
        """Deny all writes after the next few, as if the process had died there."""
        faults.on("write", skip=self.rng.randint(0, 8)).deny(times=None)
        self.told.append("  dying")

    def _attempt(self, act: Callable[[], object], faults: FaultStore | None) -> None:
        """Run `act`; it may fail only in a process that is dying."""
        try:
            act()
        except WeirError:
            assert faults is None or faults.plan, self.told

    def _write(self, rows: list[Row], *, dead: bool) -> None:
        writer = self._open()
        after: dict[UUID, dict[Any, Row]] = {}
        for row in rows:
            shard = self._shard_of(row)
            state = after.setdefault(shard, dict(self._of("durable", shard)))
            self.serial += 1
            key = self._key_of(row) if self.key else self.serial
            if dead:
                state.pop(key, None)
            else:
                state[key] = row
        self._may_die(lambda: (writer.delete if dead else writer.put)(rows), "durable", after)

    def _may_die(
        self, act: Callable[[], object], level: Freshness, after: dict[UUID, dict[Any, Row]]
    ) -> None:
        faults = self.faults
        assert faults is not None, "opened"
        if self.rng.random() < SWITCH / 2:
            self._die_soon(faults)
        self._attempt(act, faults)
        if self._decide(level, after, faults):
            self.crash()

    def _decide(
        self, level: Freshness, after: dict[UUID, dict[Any, Row]], faults: FaultStore
    ) -> bool:
        """Update the model with the outcome; True when the process died."""
        dead = bool(faults.plan)
        if not dead:
            self.levels[level].update(after)
            return False
        found: dict[UUID, list[Row]] = {}
        for row in self.reader.scan(freshness=level).to_table().to_pylist():
            found.setdefault(self._shard_of(row), []).append(row)
        for shard, new in after.items():
            old = self._of(level, shard)
            here = found.get(shard, [])
            is_new = _same(here, list(new.values()))
            assert is_new or _same(here, list(old.values())), (level, shard, self.told)
            if is_new:
                self.levels[level][shard] = new
        self.examples["died"] += 1
        return True


def _same(found: list[Row], wanted: list[Row]) -> bool:
    return sorted(map(repr, found)) == sorted(map(repr, wanted))

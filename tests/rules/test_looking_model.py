"""O-1, O-2: writes that look first match a dictionary, on all levels and both kinds of key.

Each step is a verb on a few keys, or an event that moves rows to another level: a flush, a
compaction, another writer. After each step the counts and all rows match the dictionary.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir

Key = tuple[int, str]
Row = dict[str, Any]

SCHEMAS = {
    "one column": (pa.schema([pa.field("k", pa.int64())]), ["k"]),
    "two columns": (
        pa.schema([pa.field("k", pa.int64()), pa.field("who", pa.string())]),
        ["k", "who"],
    ),
}
VALUES = [
    pa.field("n", pa.int64()),
    pa.field("s", pa.string()),
    pa.field("vec", pa.list_(pa.float32(), 2)),
]


class Model:
    """The table, a writer of its only shard, and the rows it must hold."""

    def __init__(self, place: Path, kind: str, rng: random.Random) -> None:
        schema, self.key = SCHEMAS[kind]
        full = pa.schema([*schema, *VALUES])
        self.table = weir.create(str(place), full, primary_key=self.key)
        self.rng = rng
        self.rows: dict[Key, Row] = {}
        self.writer = self.table.shard(0).writer(weir.WriterConfig(max_memtable_rows=40))
        self.log: list[str] = []

    def some_key(self) -> Row:
        number = self.rng.randrange(12)
        return {"k": number} | ({"who": "ab"[number % 2]} if len(self.key) > 1 else {})

    def value(self, column: str) -> Any:
        if self.rng.random() < 0.2:
            return None
        number = self.rng.randrange(100)
        return {"n": number, "s": f"s{number}", "vec": [float(number), 0.5]}[column]

    def whole(self) -> Row:
        return self.some_key() | {name: self.value(name) for name in ("n", "s", "vec")}

    def of(self, row: Row) -> Key:
        return row["k"], row.get("who", "")

    def many(self, make: Any) -> list[Row]:
        return [make() for _ in range(self.rng.choice((1, 1, 2, 5)))]

    # -- the verbs -------------------------------------------------------------------------------

    def put(self) -> None:
        rows = self.many(self.whole)
        self.writer.put(rows)
        for row in rows:
            self.rows[self.of(row)] = row

    def delete(self) -> None:
        keys = self.many(self.some_key)
        self.writer.delete(keys)
        for key in keys:
            self.rows.pop(self.of(key), None)

    def update(self) -> None:
        def partial() -> Row:
            chosen = self.rng.sample(("n", "s", "vec"), self.rng.randrange(4))
            return self.some_key() | {name: self.value(name) for name in chosen}

        rows, missing = self.many(partial), self.rng.choice(("error", "skip", "insert"))
        after, inserted, updated, skipped, lost = dict(self.rows), 0, 0, 0, []
        for row in rows:
            key = self.of(row)
            if key in after:
                after[key] = after[key] | row
                updated += 1
            elif missing == "insert":
                after[key] = {"n": None, "s": None, "vec": None} | row
                inserted += 1
            else:
                skipped += 1
                lost.append(key)
        if lost and missing == "error":
            with pytest.raises(weir.KeyConflict) as met:
                self.writer.update(rows)
            assert self.named(met.value.keys) <= set(lost)
            return
        counts = self.writer.update(rows, missing=missing)
        assert counts == weir.WriteCounts(inserted, updated, 0, skipped)
        self.rows = after

    def insert(self) -> None:
        rows, on_conflict = self.many(self.whole), self.rng.choice(("error", "skip"))
        after, inserted, met_keys = dict(self.rows), 0, []
        for row in rows:
            if self.of(row) in after:
                met_keys.append(self.of(row))
            else:
                after[self.of(row)] = row
                inserted += 1
        if met_keys and on_conflict == "error":
            with pytest.raises(weir.KeyConflict) as met:
                self.writer.insert(rows)
            assert self.named(met.value.keys) <= set(met_keys)
            return
        counts = self.writer.insert(rows, on_conflict=on_conflict)
        assert counts == weir.WriteCounts(inserted, 0, 0, len(met_keys))
        self.rows = after

    def put_when(self) -> None:
        rows = self.many(self.whole)
        when = "current IS NULL OR incoming.n > current.n"
        inserted = updated = skipped = 0
        for row in rows:
            now = self.rows.get(self.of(row))
            if now is None:
                inserted += 1
            elif None not in (row["n"], now["n"]) and row["n"] > now["n"]:
                updated += 1
            else:
                skipped += 1
                continue
            self.rows[self.of(row)] = row
        counts = self.writer.put(rows, when=when)
        assert counts == weir.WriteCounts(inserted, updated, 0, skipped)

    def update_where(self) -> None:
        bound = self.rng.randrange(100)
        counts = self.writer.update_where(f"n < {bound}", {"n": "n + 1000", "s": "'set'"})
        hit = [key for key, row in self.rows.items() if row["n"] is not None and row["n"] < bound]
        for key in hit:
            self.rows[key] = self.rows[key] | {"n": self.rows[key]["n"] + 1000, "s": "set"}
        assert counts == weir.WriteCounts(updated=len(hit))

    def delete_where(self) -> None:
        bound = self.rng.randrange(90, 1100)
        counts = self.writer.delete_where(f"n > {bound}")
        hit = [key for key, row in self.rows.items() if row["n"] is not None and row["n"] > bound]
        for key in hit:
            del self.rows[key]
        assert counts == weir.WriteCounts(deleted=len(hit))

    # -- other levels ----------------------------------------------------------------------------

    def flush(self) -> None:
        self.writer.flush()

    def compact(self) -> None:
        self.writer.flush()
        self.table.compact()

    def reopen(self) -> None:
        if self.rng.random() < 0.5:
            self.writer.close()  # otherwise the next writer fences it and replays
        self.writer = self.table.shard(0).writer()

    def named(self, keys: list[Any]) -> set[Key]:
        return {key if isinstance(key, tuple) else (key, "") for key in keys}

    def check(self) -> None:
        for rows in (self.writer.scan().read_all(), self.table.scan().to_table()):
            found = {self.of(row): row for row in rows.to_pylist()}
            assert found == self.rows, self.log
            assert rows.num_rows == len(found), self.log


@pytest.mark.parametrize("kind", list(SCHEMAS))
@pytest.mark.parametrize("seed", [1, 2])
def test_o2_every_verb_over_every_level_does_what_a_dictionary_does(
    tmp_path: Path, kind: str, seed: int
) -> None:
    rng = random.Random(f"{kind} {seed}")
    model = Model(tmp_path / "t", kind, rng)
    verbs = ["put", "delete", "update", "insert", "put_when", "update_where", "delete_where"]
    moves = ["flush", "compact", "reopen"]
    try:
        for _ in range(60):
            step = rng.choice(verbs) if rng.random() < 0.85 else rng.choice(moves)
            model.log.append(step)
            getattr(model, step)()
            model.check()
    finally:
        model.writer.close()

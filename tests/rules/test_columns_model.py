"""Random histories of a table whose columns pylance keeps adding, dropping and renaming.

The model gives each column an identity (a thing) apart from its name and field id; Lance reuses
both after a drop. A writer keeps the columns it was opened with.
"""

import random

import lance
import pyarrow as pa
import pytest

import weir

NAMES = ("a", "b", "c")
HISTORIES, STEPS = 12, 24


class Evolving:
    """A table, its current columns (name to thing) and its rows (key to values by thing)."""

    def __init__(self, uri: str, seed: int) -> None:
        self.rng = random.Random(seed)
        schema = pa.schema([("id", pa.int64()), ("a", pa.int64())])
        sharding = weir.Bucket("id", self.rng.choice((2, 3))) if seed % 2 else weir.Unsharded()
        self.table = weir.create(uri, schema, primary_key="id", sharding=sharding)
        self.columns = {"a": 0}
        self.things = 1
        self.rows: dict[int, dict[int, int]] = {}
        self.reader = weir.open(uri)
        self.writers: list[tuple[weir.TableWriter, dict[str, int]]] = []
        self.ids_given: set[int] = set()
        self.reused = 0
        self.told: list[str] = []

    def step(self) -> None:
        weights = {
            self.put: 6,
            self.delete: 1,
            self.flush: 2,
            self.compact: 1,
            self.take_over: 1,
            self.add: 2,
            self.drop: 1.5,
            self.rename: 1.5,
        }
        [operation] = self.rng.choices(list(weights), list(weights.values()))
        self.told.append(operation.__name__)
        operation()

    def writer(self) -> tuple[weir.TableWriter, dict[str, int]]:
        if not self.writers:
            self.writers.append((weir.open(self.table.uri).writer(), dict(self.columns)))
        return self.writers[-1]

    def put(self) -> None:
        writer, columns = self.writer()
        rows = {}
        for key in self.rng.sample(range(8), 3):
            rows[key] = {thing: self.rng.randrange(100) for thing in columns.values()}
        writer.put([{"id": k} | {n: r[t] for n, t in columns.items()} for k, r in rows.items()])
        self.rows |= rows

    def delete(self) -> None:
        key = self.rng.randrange(8)
        self.writer()[0].delete([key])
        self.rows.pop(key, None)

    def flush(self) -> None:
        self.writer()[0].flush()

    def compact(self) -> None:
        weir.open(self.table.uri).compact()

    def take_over(self) -> None:
        """Another process takes over the shards, with the current columns."""
        self.writers.append((weir.open(self.table.uri).writer(), dict(self.columns)))

    def add(self) -> None:
        free = [name for name in NAMES if name not in self.columns]
        if free:
            name = self.rng.choice(free)
            base = lance.dataset(self.table.uri)
            base.add_columns(pa.schema([(name, pa.int64())]))
            self.columns[name] = self.things
            self.things += 1
            [number] = [f.id() for f in base.lance_schema.fields() if f.name() == name]
            self.reused += number in self.ids_given
            self.told.append(f"  {name} with id {number}")

    def drop(self) -> None:
        if self.columns:
            name = self.rng.choice(sorted(self.columns))
            base = lance.dataset(self.table.uri)
            self.ids_given |= {f.id() for f in base.lance_schema.fields() if f.name() == name}
            base.drop_columns([name])
            del self.columns[name]

    def rename(self) -> None:
        free = [name for name in NAMES if name not in self.columns]
        if free and self.columns:
            old, new = self.rng.choice(sorted(self.columns)), self.rng.choice(free)
            lance.dataset(self.table.uri).alter_columns({"path": old, "name": new})
            self.columns[new] = self.columns.pop(old)

    def check(self) -> None:
        wanted = {
            key: {name: row.get(thing) for name, thing in self.columns.items()}
            for key, row in self.rows.items()
        }
        for found in (
            self.reader.scan().to_table().to_pylist(),
            self.reader.get(list(range(8))).to_pylist(),
        ):
            assert {r.pop("id"): r for r in found} == wanted, self.told
        if self.columns:
            name = min(self.columns)
            passing = [k for k, r in wanted.items() if r[name] is not None and r[name] > 50]
            found = self.reader.scan(columns=["id"], filter=f"{name} > 50").to_table()
            assert sorted(found["id"].to_pylist()) == sorted(passing), self.told

    def finish(self) -> None:
        for writer, _ in self.writers:
            try:
                writer.close()
            except weir.WeirError:
                continue  # fenced long ago


@pytest.mark.slow
def test_rows_keep_to_their_columns_whatever_happens_to_those(tmp_path):
    reused = 0
    for seed in range(HISTORIES):
        history = Evolving(str(tmp_path / f"t{seed}"), seed)
        for _ in range(STEPS):
            history.step()
            history.check()
        history.finish()
        reused += history.reused
    assert reused > 3, "Lance gave no id away again: nothing was tried"

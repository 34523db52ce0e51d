"""Spark by name beside plain Parquet: reads of a part, an append, an UPDATE, a MERGE.

Parquet changes rows by rewriting all of them. A round fails unless both sides hold the same rows
afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import weir
from benchmarks.harness import Ctx, Goal, Round, Side, Workload
from benchmarks.tables import copy_table, drop_table
from benchmarks.workloads.engines import session

STEP = 250_000
"""Rows of one Parquet file."""
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        *(pa.field("a", pa.int64()), pa.field("b", pa.float64())),
        *(pa.field("c", pa.string()), pa.field("d", pa.int64()), pa.field("e", pa.string())),
    ]
)
SUMS = "SELECT count(*), sum(id), sum(a) FROM {}"


def _rows(keys: np.ndarray[Any, Any]) -> pa.Table:
    names = pa.array(keys).cast(pa.string())
    chance = np.random.default_rng(int(keys[0])).bytes(16 * len(keys)).hex()
    columns = [
        pa.array(keys),
        pa.array(keys * 7),
        pa.array(keys / 3),
        pc.binary_join_element_wise("name", names, "-"),
        pa.array(keys % 1000),
        pa.array([chance[i : i + 32] for i in range(0, len(chance), 32)]),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _prepare(ctx: Ctx) -> dict[str, Any]:
    """The same rows as a folded table and as Parquet, rows to append, and one per cent to merge."""
    rows = ctx.n(5_000_000, 500_000, 1000)
    uri = f"{ctx.uri('lake')}/db/t.lance"
    weir.create(uri, SCHEMA, primary_key="id", sharding=weir.Bucket("id", 2))
    plain, more, source = (Path(ctx.uri(name)) for name in ("plain", "more", "source"))
    for folder in (plain, more, source):
        folder.mkdir(parents=True)

    def parts() -> Iterator[pa.RecordBatch]:
        for start in range(0, rows, STEP):
            part = _rows(np.arange(start, min(start + STEP, rows), dtype=np.int64))
            pq.write_table(part, plain / f"{start:010d}.parquet")
            yield from part.to_batches()

    stored = lance.dataset(uri).schema
    reader = pa.RecordBatchReader.from_batches(
        stored, (pa.RecordBatch.from_arrays(b.columns, schema=stored) for b in parts())
    )
    lance.write_dataset(reader, uri, mode="append")
    new = np.arange(rows, rows + rows // 100, dtype=np.int64)
    pq.write_table(_rows(new), more / "0.parquet")
    old = np.arange(7, rows, 100, dtype=np.int64)
    pq.write_table(pa.table({"id": old, "a": old * 7 + 1}), source / "0.parquet")
    some = pa.table({"d": pa.array(range(0, 1000, 10), pa.int64())})
    small = f"{ctx.uri('lake')}/db/small.lance"
    with weir.create(small, some.schema, primary_key="d").writer() as writer:
        writer.put(some)
    weir.open(small).compact(fold_wal=True)
    beside = Path(ctx.uri("small"))
    beside.mkdir(parents=True)
    pq.write_table(some, beside / "0.parquet")
    sums = [(len(k), int(k.sum())) for k in (np.arange(rows, dtype=np.int64), new, old)]
    whole, added = sums[0], (sums[0][0] + sums[1][0], sums[0][1] + sums[1][1])
    return {
        "uri": uri,
        "plain": str(plain),
        "more": str(more),
        "source": str(source),
        "small": [small, str(beside)],
        "rows": rows,
        "appended": [*added, added[1] * 7],
        "merged": [*whole, whole[1] * 7 + sums[2][0]],
        "updated": [*whole, whole[1] * 7 + 1],
    }


Query = Callable[[Any, Any, Ctx], None]
"""Runs on the whole table and the small one, and fails if its result is wrong."""


def _column(whole: Any, _small: Any, _ctx: Ctx) -> None:
    whole.select("a").write.format("noop").mode("overwrite").save()


def _key(whole: Any, _small: Any, ctx: Ctx) -> None:
    wanted = ctx.data["rows"] // 3
    assert [row.a for row in whole.where(f"id = {wanted}").select("a").collect()] == [wanted * 7]


def _count(whole: Any, _small: Any, ctx: Ctx) -> None:
    assert whole.count() == ctx.data["rows"]


def _join(whole: Any, small: Any, ctx: Ctx) -> None:
    found = whole.join(small, "d").selectExpr("count(*)", "max(c)").first()
    assert found[0] == ctx.data["rows"] // 10


@contextmanager
def _asking(ctx: Ctx, *, query: Query, parquet: bool) -> Iterator[Round]:
    with _named() as spark:

        def frame(uri: str, folder: str) -> Any:
            return spark.read.parquet(folder) if parquet else spark.table(_name(uri))

        def run() -> float:
            began = time.perf_counter()
            small = frame(*ctx.data["small"])
            query(frame(ctx.data["uri"], ctx.data["plain"]), small, ctx)
            return (time.perf_counter() - began) * 1e3

        run()
        yield run


Change = Callable[[Any, Ctx, str], str]
"""Changes the copy at the URI in the last argument; returns the SQL name of the result."""


def _append(spark: Any, ctx: Ctx, uri: str) -> str:
    spark.read.parquet(ctx.data["more"]).writeTo(_name(uri)).append()
    return _name(uri)


def _append_parquet(spark: Any, ctx: Ctx, uri: str) -> str:
    spark.read.parquet(ctx.data["more"]).write.mode("append").parquet(uri)
    return f"parquet.`{uri}`"


def _merge(spark: Any, ctx: Ctx, uri: str) -> str:
    spark.sql(
        f"MERGE INTO {_name(uri)} t USING parquet.`{ctx.data['source']}` s ON t.id = s.id"
        " WHEN MATCHED THEN UPDATE SET a = s.a"
    )
    return _name(uri)


def _merge_parquet(spark: Any, ctx: Ctx, uri: str) -> str:
    spark.sql(
        f"SELECT t.id, coalesce(s.a, t.a) AS a, b, c, d, e FROM parquet.`{uri}` t"
        f" LEFT JOIN parquet.`{ctx.data['source']}` s ON t.id = s.id"
    ).write.parquet(f"{uri}/anew")
    return f"parquet.`{uri}/anew`"


def _update(spark: Any, ctx: Ctx, uri: str) -> str:
    spark.sql(f"UPDATE {_name(uri)} SET a = a + 1 WHERE id = {ctx.data['rows'] // 3}")
    return _name(uri)


def _update_parquet(spark: Any, ctx: Ctx, uri: str) -> str:
    a = f"CASE WHEN id = {ctx.data['rows'] // 3} THEN a + 1 ELSE a END AS a"
    spark.sql(f"SELECT id, {a}, b, c, d, e FROM parquet.`{uri}`").write.parquet(f"{uri}/anew")
    return f"parquet.`{uri}/anew`"


@contextmanager
def _changing(ctx: Ctx, *, change: Change, of: str, expected: str) -> Iterator[Round]:
    with _named() as spark:

        def run() -> float:
            uri = copy_table(ctx, ctx.data[of])
            began = time.perf_counter()
            name = change(spark, ctx, uri)
            took = time.perf_counter() - began
            found = list(spark.sql(SUMS.format(name)).first())
            assert found == ctx.data[expected], (found, ctx.data[expected])
            drop_table(ctx, uri)
            return took * 1e3

        run()
        yield run


@contextmanager
def _named() -> Iterator[Any]:
    from weir.spark import register

    with session() as spark:
        register(spark, catalog="bench", root="/")  # the names used here are whole URIs
        yield spark


def _name(uri: str) -> str:
    return f"bench.`{uri}`"


def _sides(weir: Change, parquet: Change, expected: str) -> dict[str, Side]:
    return {
        "weir": partial(_changing, change=weir, of="uri", expected=expected),
        "Spark, Parquet": partial(_changing, change=parquet, of="plain", expected=expected),
    }


def _both(query: Query) -> dict[str, Side]:
    return {
        "weir": partial(_asking, query=query, parquet=False),
        "Spark, Parquet": partial(_asking, query=query, parquet=True),
    }


def _workload(name: str, note: str, sides: dict[str, Side], within: float | None) -> Workload:
    return Workload(
        name,
        unit="ms",
        better="lower",
        goal="reported" if within is None else f"within {within} of native Parquet",
        goals=() if within is None else [Goal("Spark, Parquet", within=within)],
        prepare=_prepare,
        sides=sides,
        where=("local",),
        rounds_max=5,
        needs_spark=True,
        note=note,
    )


WORKLOADS = [
    _workload(
        "Spark by name, 1 of 6 columns of 5M rows",
        "into Spark's noop sink; nothing tells weir which column but the query",
        _both(_column),
        1.1,
    ),
    _workload(
        "Spark by name, one key of 5M rows",
        "WHERE id = n, pushed down on both sides",
        _both(_key),
        None,
    ),
    _workload(
        "Spark by name, count of 5M rows",
        "answered by metadata on both sides",
        _both(_count),
        None,
    ),
    _workload(
        "Spark by name, join of 5M rows with 100",
        "the small table is broadcast on both sides",
        _both(_join),
        None,
    ),
    _workload(
        "Spark by name, append of 50k rows to 5M",
        "durable, by key, through the log; Parquet adds files",
        _sides(_append, _append_parquet, "appended"),
        None,
    ),
    _workload(
        "Spark by name, UPDATE of one row of 5M",
        "Parquet writes the whole result anew, beside the old files",
        _sides(_update, _update_parquet, "updated"),
        None,
    ),
    _workload(
        "Spark by name, MERGE of 1 % into 5M rows",
        "Parquet writes the whole result anew, beside the old files",
        _sides(_merge, _merge_parquet, "merged"),
        None,
    ),
]

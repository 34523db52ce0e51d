"""A scan fits the Arrow ecosystem: schema, iteration, order, offset, other engines."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import datafusion
import duckdb
import lance
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest

import weir
from weir.read.scan import Scan

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.float64()),
        pa.field("kind", pa.string()),
    ]
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> weir.Table:
    """Rows in the base, in SSTables and in the log; some of them replaced."""
    place = tmp_path_factory.mktemp("scan") / "t"
    made = weir.create(place, SCHEMA, primary_key="id", sharding=weir.Bucket("id", 2))
    for part in range(3):
        with made.writer() as writer:
            writer.put(
                {"id": n, "v": (n * 7) % 30 / 10, "kind": "even" if n % 2 == 0 else "odd"}
                for n in range(part * 8, part * 8 + 14)
            )
        if part == 0:
            made.compact()
    return made


def test_the_schema_is_known_before_a_row_is_read(table: weir.Table) -> None:
    assert table.scan().schema == table.schema
    assert table.scan(["kind", "id"]).schema.names == ["kind", "id"]


def test_a_scan_is_iterated_batch_by_batch(table: weir.Table) -> None:
    rows = [row for batch in table.scan(["id"]) for row in batch.to_pylist()]
    assert sorted(row["id"] for row in rows) == list(range(30))
    assert sum(batch.num_rows for batch in table.scan(batch_size=7)) == 30


def test_rows_are_sorted_and_the_first_left_out(table: weir.Table) -> None:
    scan = table.scan(["id"], order_by=[("v", "descending"), "id"], offset=2, limit=4)
    expected = sorted(range(30), key=lambda n: (-((n * 7) % 30), n))[2:6]
    assert scan.to_table().to_pydict() == {"id": expected}
    assert [row["id"] for batch in scan for row in batch.to_pylist()] == expected
    assert scan.count() == 4
    assert table.scan(order_by="id").to_table()["id"].to_pylist() == list(range(30))
    twice = table.scan(["id"], order_by=["v", ("v", "descending")], limit=2)
    assert twice.to_table() == table.scan(["id"], order_by="v", limit=2).to_table()


@pytest.mark.parametrize(("offset", "limit"), [(0, 5), (5, 5), (28, 5), (30, None), (99, 1)])
def test_an_offset_leaves_out_so_many_rows(table: weir.Table, offset: int, limit: int) -> None:
    scan = table.scan(offset=offset, limit=limit)
    left = max(0, 30 - offset)
    expected = left if limit is None else min(left, limit)
    assert scan.count() == scan.to_table().num_rows == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"offset": -1},
        {"offset": 1.5},
        {"batch_size": "10"},
        {"batch_size": 2.5},
        {"order_by": [("v", "up")]},
        {"order_by": 3},
        {"order_by": [3]},
        {"order_by": [("v",)]},
    ],
    ids=str,
)
def test_a_wrong_offset_or_order_is_refused(table: weir.Table, wrong: dict) -> None:
    with pytest.raises(weir.InvalidInput, match=next(iter(wrong))):
        table.scan(**wrong)


@pytest.mark.parametrize("worker", [None, (0,), (1, 1), ("0", 1), 3], ids=str)
def test_a_wrong_worker_of_a_loader_is_refused(table: weir.Table, worker: object) -> None:
    scan = table.scan()
    with pytest.raises(weir.InvalidInput, match=r"worker must be \(index, count\)"):
        scan.loader(worker=worker)  # type: ignore[arg-type]


def test_a_scan_of_what_is_not_there_is_refused_however_it_is_read(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("e", pa.list_(pa.float32(), 2))])
    made = weir.create(tmp_path / "t", schema)
    for wrong in ({"columns": ["nope"]}, {"order_by": "nope"}, {"order_by": "e"}):
        for read in (Scan.count, Scan.to_table, Scan.explain):
            scan = made.scan(**wrong)
            with pytest.raises(weir.InvalidInput, match=r"'nope'|no order"):
                read(scan)
    told = made.scan(offset=3, order_by=[("id", "descending")]).explain()
    assert "offset    3" in told
    assert "order by  id descending" in told


def test_frames_of_pandas_and_polars_hold_the_rows(table: weir.Table) -> None:
    assert sorted(table.scan().to_pandas()["id"]) == list(range(30))
    frame = table.scan().to_polars()
    assert isinstance(frame, pl.DataFrame)
    assert sorted(frame["id"]) == list(range(30))


class Asked:
    """What an engine requested from a scan."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.columns: list[object] = []
        self.filters: list[str] = []
        real = Scan.narrowed

        def narrowed(scan: Scan, columns, filter, batch_size, limit=None) -> Scan:
            self.columns.append(columns)
            self.filters.append(str(filter))
            return real(scan, columns, filter, batch_size, limit)

        monkeypatch.setattr(Scan, "narrowed", narrowed)


def test_duckdb_pushes_columns_and_filters_into_a_dataset(table, monkeypatch) -> None:
    asked = Asked(monkeypatch)
    orders = table.scan().to_dataset()  # noqa: F841  found by its name
    found = duckdb.sql(
        "SELECT kind, count(*) n FROM orders WHERE id >= 20 GROUP BY kind ORDER BY 1"
    )
    assert found.fetchall() == [("even", 5), ("odd", 5)]
    assert set(asked.columns[-1]) <= {"kind", "id"}
    assert "id >= 20" in asked.filters[-1]
    assert duckdb.sql("SELECT count(*) FROM orders").fetchall() == [(30,)]


def test_polars_pushes_columns_and_filters_into_a_dataset(table, monkeypatch) -> None:
    asked = Asked(monkeypatch)
    lazy = pl.scan_pyarrow_dataset(table.scan().to_dataset())
    frame = lazy.filter(pl.col("id") > 26).select("kind").collect()
    assert sorted(frame["kind"]) == ["even", "odd", "odd"]
    assert "id > 26" in asked.filters[-1]
    assert "v" not in asked.columns[-1]


def test_datafusion_pushes_columns_and_filters_into_a_dataset(table, monkeypatch) -> None:
    asked = Asked(monkeypatch)
    context = datafusion.SessionContext()
    context.register_dataset("orders", table.scan().to_dataset())
    found = context.sql("SELECT count(*) n FROM orders WHERE id >= 20 AND kind = 'odd'")
    assert found.to_pydict() == {"n": [5]}
    assert "v" not in asked.columns[-1]
    assert "id >= 20" in asked.filters[-1]
    assert "kind" in asked.filters[-1]
    assert context.sql("SELECT max(id) FROM orders").to_pydict() == {"max(orders.id)": [29]}


def test_engines_filter_the_rows_of_a_scan_that_has_a_filter_in_sql(table) -> None:
    """It was refused: one of the two filters was SQL, and the other a pyarrow expression."""
    orders = table.scan(["id", "kind"], filter="id < 25").to_dataset()
    found = duckdb.sql("SELECT id FROM orders WHERE id >= 20 AND kind = 'odd' ORDER BY 1")
    assert found.fetchall() == [(21,), (23,)]
    assert orders.count_rows(pc.field("id") > 22) == 2
    assert orders.head(1, columns=["kind"], filter=pc.field("id") == 21).to_pydict() == {
        "kind": ["odd"]
    }
    assert sorted(orders.filter(pc.field("id") > 22).to_table()["id"].to_pylist()) == [23, 24]
    frame = pl.scan_pyarrow_dataset(orders).filter(pl.col("id") > 22).select("kind").collect()
    assert sorted(frame["kind"]) == ["even", "odd"]


def test_the_head_of_a_dataset_reads_no_more_rows_than_wanted(table, monkeypatch) -> None:
    limits: list[int | None] = []
    read = Scan.to_reader

    def watched(scan: Scan) -> pa.RecordBatchReader:
        limits.append(scan._limit)
        return read(scan)

    monkeypatch.setattr(Scan, "to_reader", watched)
    dataset = table.scan().to_dataset()
    assert dataset.head(3).num_rows == 3
    assert dataset.head(3, columns=["id"]).column_names == ["id"]
    assert limits == [3, 3]
    assert dataset.head(0).num_rows == 0


def test_a_dataset_without_columns_has_rows_and_no_columns(table) -> None:
    dataset = table.scan().to_dataset()
    assert dataset.to_table(columns=[]).shape == (30, 0)
    assert dataset.scanner(columns=[]).to_reader().schema.names == []
    assert sum(batch.num_rows for batch in dataset.to_batches(columns=[])) == 30


def test_pyarrow_writes_takes_and_filters_the_rows_of_a_dataset(table, tmp_path: Path) -> None:
    dataset = table.scan(["id"]).to_dataset()
    pads.write_dataset(dataset, tmp_path / "out", format="parquet")
    assert pads.dataset(tmp_path / "out").count_rows() == 30
    assert dataset.take([0, 2]).num_rows == 2
    few = dataset.filter(pc.field("id") > 10).filter(pc.field("id") < 13)
    assert sorted(few.to_table()["id"].to_pylist()) == [11, 12]
    assert dataset.scanner().take([1]).num_rows == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda d: d.sort_by("id"),
        lambda d: d.join(d, "id"),
        lambda d: d.join_asof(d, "id", [], 1),
        lambda d: d.replace_schema(d.schema).to_table(),
        lambda d: pads.dataset([d]).to_table(),
        lambda d: pads.Scanner.from_dataset(d).to_table(),
    ],
    ids=["sort_by", "join", "join_asof", "replace_schema", "union", "from_dataset"],
)
def test_what_pyarrow_cannot_do_with_a_dataset_is_refused_and_kills_nothing(table, use) -> None:
    dataset = table.scan(["id"]).to_dataset()
    with pytest.raises(weir.InvalidInput, match=r"to_reader\(\)"):
        use(dataset)


def test_a_dataset_is_fresh_and_keeps_what_the_scan_was_narrowed_to(tmp_path: Path) -> None:
    made = weir.create(tmp_path / "t", SCHEMA, primary_key="id")
    dataset = made.scan(["id", "v"], filter=pc.field("id") > 1).to_dataset()
    assert dataset.count_rows() == 0
    with made.writer() as writer:
        writer.put([{"id": n} for n in range(4)])
    assert dataset.to_table(filter=pc.field("id") < 3).to_pydict() == {"id": [2], "v": [None]}
    assert dataset.count_rows() == 2
    with pytest.raises(weir.InvalidInput, match="limit"):
        made.scan(limit=1).to_dataset()


def test_a_time_reads_the_newest_checkpoint_before_it(tmp_path: Path) -> None:
    made = weir.create(tmp_path / "t", SCHEMA, primary_key="id")
    with pytest.raises(weir.CheckpointNotFound, match="no checkpoint was made at or before"):
        made.count(checkpoint=datetime.now(UTC))
    with made.writer() as writer:
        writer.put([{"id": 1}])
        first = made.checkpoint()
        writer.put([{"id": 2}])
        second = made.checkpoint()
        writer.put([{"id": 3}])
    at = datetime.fromtimestamp(second.created, UTC)
    assert made.count(checkpoint=at + timedelta(seconds=9)) == 2
    if first.created < second.created:
        before = datetime.fromtimestamp((first.created + second.created) / 2, UTC)
        assert made.count(checkpoint=before) == 1
    with pytest.raises(weir.InvalidInput, match="time zone"):
        made.count(checkpoint=datetime(2030, 1, 1))  # noqa: DTZ001


def test_the_schema_of_a_checkpoint_is_the_one_it_was_made_with(tmp_path: Path) -> None:
    made = weir.create(tmp_path / "t", SCHEMA, primary_key="id")
    with made.writer() as writer:
        writer.put([{"id": 1}])
    first = made.checkpoint()
    lance.dataset(made.uri).add_columns([pa.field("later", pa.int64())])
    past = weir.open(made.uri).scan(checkpoint=first)
    assert past.schema.names == SCHEMA.names == past.to_table().schema.names
    assert weir.open(made.uri).scan().schema.names == [*SCHEMA.names, "later"]


@pytest.mark.parametrize("freshness", ["base", "flushed", "durable"])
def test_columns_are_computed_alike_in_every_level(table: weir.Table, freshness: str) -> None:
    columns = {
        "id": "id",
        "double": "v * 2",
        "named": "upper(kind)",
        "odd": "id % 2 = 1",
        "one": "1",
        "known": "coalesce(v, -1.0)",
    }
    scan = table.scan(columns, freshness=freshness)
    expected = sorted(
        (
            {
                "id": row["id"],
                "double": row["v"] * 2,
                "named": row["kind"].upper(),
                "odd": row["id"] % 2 == 1,
                "one": 1,
                "known": row["v"],
            }
            for row in table.scan(freshness=freshness).to_table().to_pylist()
        ),
        key=lambda row: row["id"],
    )
    found = scan.to_table()
    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == expected
    assert found.schema == scan.schema
    assert scan.count() == len(expected)
    assert sum(batch.num_rows for batch in scan) == len(expected)


def test_what_lance_computes_of_a_dataset_a_scan_does(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "id": pa.array(range(6), pa.int64()),
            "odd name": ["a", None, "cc", "", "é", "f"],
            "price": [1.5, None, float("nan"), -0.0, 1e300, 2.0],
            "qty": pa.array([1, 2, None, 4, 5, 6], pa.int32()),
            "at": pa.array([0, 1, 2, None, 4, 5], pa.timestamp("us")),
            "tags": [["x"], [], None, ["y", "z"], [None], ["w"]],
        }
    )
    columns = {
        "total": "price * qty",
        "size": "length(`odd name`)",
        "day": "date_trunc('day', at)",
        "first": "tags[1]",
        "wide": "cast(qty as bigint) * 3000000000",
        "id": "id + 1",
        "is": "qty IN (1, 4) OR price IS NULL",
    }
    there = lance.write_dataset(rows, tmp_path / "plain.lance")
    expected = there.scanner(columns=columns, scan_in_order=True).to_table()
    made = weir.create(tmp_path / "t", rows.schema, primary_key="id")
    for start in (0, 2, 4):  # in the base, in an SSTable, in the log
        with made.writer() as writer:
            writer.put(rows.slice(start, 2))
            if start < 4:
                writer.flush()
        if start == 0:
            made.compact()
    found = made.scan(columns).to_table().sort_by("id")
    assert found.schema.types == expected.schema.types
    assert repr(found.to_pylist()) == repr(expected.to_pylist())  # NaN is not itself
    with made.writer() as writer:
        writer.put(rows.slice(5))
        shard = next(iter(writer.shard_writers().values()))
        again = shard.scan(columns).read_all().sort_by("id")
    assert repr(again.to_pylist()) == repr(expected.to_pylist())


def test_computed_columns_are_ordered_limited_and_cut(table: weir.Table) -> None:
    columns = {"id": "id", "back": "0 - id"}
    first = table.scan(columns, order_by="back", limit=3, offset=1).to_table()
    assert first.to_pydict() == {"id": [28, 27, 26], "back": [-28, -27, -26]}
    hidden = table.scan({"back": "0 - id"}, order_by="id", limit=2).to_table()
    assert hidden.to_pydict() == {"back": [0, -1]}
    assert [b.num_rows for b in table.scan(columns, batch_size=7, limit=20)] == [7, 7, 6]
    narrow = table.scan({"back": "0 - id"}, filter="id = 3")
    assert narrow.to_table().to_pydict() == {"back": [-3]}
    assert "0 - id" in narrow.explain()
    empty = table.scan({"x": "upper(kind)"}, filter="id < 0").to_table()
    assert (empty.num_rows, empty.schema.field("x").type) == (0, pa.string())


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"x": "nope + 1"}, "nope"),
        ({"x": "v +"}, "v +"),
        ({"x": "sum(v)"}, "sum"),
        ({"x": "_rowid"}, "_rowid"),
        ({"x": ""}, "column 'x' must be SQL"),
        ({"": "v"}, "name of a column"),
        ({"x": pc.field("v")}, "column 'x' must be SQL"),
        ({}, "at least one"),
    ],
)
def test_what_cannot_be_computed_is_refused(table: weir.Table, columns: dict, said: str) -> None:
    with pytest.raises(weir.InvalidInput, match=re.escape(said)):
        table.scan(columns).to_table()

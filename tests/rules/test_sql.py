"""`table.sql`: one snapshot, every acknowledged row, and nothing but this table to be read."""

import asyncio
import datetime as dt
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pyarrow as pa
import pytest

import weir
from weir import aio
from weir.errors import InvalidInput
from weir.read.reader import SnapshotReader
from weir.testing.faulty import FaultyStores

ENGINES: tuple[Literal["duckdb", "datafusion"], ...] = ("duckdb", "datafusion")
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("kind", pa.string()), ("v", pa.float64())]
)


def row(number: int) -> dict[str, object]:
    return {"id": number, "kind": "odd" if number % 2 else "even", "v": number / 2}


@pytest.fixture
def table(tmp_path: Path) -> weir.Table:
    """Rows 0 to 3 in the base, 4 and 5 in an SSTable, 6 in the log, where 0 was deleted."""
    made = weir.create(str(tmp_path / "events.lance"), SCHEMA, primary_key="id")
    for rows in ([0, 1, 2, 3], [4, 5]):
        with made.writer() as writer:
            writer.put([row(number) for number in rows])
        if rows[0] == 0:
            made.compact()
    writer = made.writer()
    writer.put([row(6), {"id": 1, "kind": "new", "v": 100.0}])
    writer.delete([0])
    writer.flush_wal()
    return made


@pytest.mark.parametrize("engine", ENGINES)
def test_a_query_sees_every_level_by_either_name(table: weir.Table, engine: Any) -> None:
    found = table.sql("select count(*) as n, sum(v) as total from t", engine=engine)
    assert found.to_pylist() == [{"n": 6, "total": 1 + 1.5 + 2 + 2.5 + 3 + 100}]
    text = "select id from events where kind = 'even' and id > 2 order by id desc"
    assert table.sql(text, engine=engine).to_pylist() == [{"id": 6}, {"id": 4}]
    text = "with big as (select * from t where v >= 2) select kind, count(*) n from big group by 1"
    counts = {r["kind"]: r["n"] for r in table.sql(text, engine=engine).to_pylist()}
    assert counts == {"even": 2, "odd": 1, "new": 1}
    assert table.sql("select count(*) n from t", freshness="base", engine=engine)[0][0].as_py() == 4


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["events.v2", "T", "Events", 'a "b" c', "select", "1st"])
def test_a_table_of_any_name_is_queried_by_either(tmp_path: Path, name: str, engine: Any) -> None:
    made = weir.create(tmp_path / f"{name}.lance", {"id": "int64"})
    quoted = name.replace('"', '""')
    for either in ("t", f'"{quoted}"', *([name] if name in ("T", "Events") else [])):
        found = made.sql(f"SELECT count(*) AS n FROM {either}", engine=engine)
        assert found["n"].to_pylist() == [0]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_checkpoint_can_be_queried(table: weir.Table, engine: Any) -> None:
    table.checkpoint("durable", name="then")
    with weir.open(table.uri).writer() as writer:
        writer.put([row(number) for number in range(50, 60)])
    assert (
        table.sql("select count(*) n from t", checkpoint="then", engine=engine)[0][0].as_py() == 6
    )
    assert table.sql("select count(*) n from t", engine=engine)[0][0].as_py() == 16


@pytest.mark.parametrize("engine", ENGINES)
def test_l5_all_mentions_of_the_table_are_one_snapshot(table: weir.Table, engine: Any) -> None:
    """Every read of a level lets another writer put a row; no part of the query sees it."""
    more = iter(range(100, 200))
    with weir.open(table.uri).writer() as writer:
        real = SnapshotReader.merged_levels

        def levels(self: SnapshotReader, *args: Any) -> Any:
            writer.put([row(next(more))])
            return real(self, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SnapshotReader, "merged_levels", levels)
            text = "select count(*) n from t a full outer join events b on a.id = b.id"
            text += " where a.id is null or b.id is null"
            assert table.sql(text, engine=engine)[0][0].as_py() == 0
    assert next(more) >= 102, "both mentions were read"


@pytest.mark.parametrize("engine", ENGINES)
def test_parameters_arrive_as_values(table: weir.Table, engine: Any) -> None:
    nasty = "o'hara') or 1=1 --"
    with weir.open(table.uri).writer() as writer:
        writer.put([{"id": 7, "kind": nasty, "v": 0.1}])
    text = "select id from t where kind = $kind and v < $most"
    params = {"kind": nasty, "most": 0.2}
    assert table.sql(text, params=params, engine=engine).to_pylist() == [{"id": 7}]
    for wrong in (None, {}, {"kind": nasty}, {**params, "more": 1}):
        with pytest.raises(InvalidInput, match=r"most|more|kind"):
            table.sql(text, params=wrong, engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_values_of_every_type_compare_equal(tmp_path: Path, engine: Any) -> None:
    values: dict[str, tuple[pa.DataType, Any]] = {
        "s": (pa.string(), "a'b"),
        "b": (pa.binary(), b"\0'"),
        "i": (pa.int64(), -(2**63)),
        "f": (pa.float64(), 0.1),
        "o": (pa.bool_(), True),
        "d": (pa.date32(), dt.date(2024, 7, 1)),
        "at": (pa.timestamp("us", "UTC"), dt.datetime(2024, 7, 1, 1, 2, 3, 4, dt.UTC)),
        "p": (pa.decimal128(10, 2), Decimal("9.50")),
    }
    schema = pa.schema([("id", pa.int64()), *((n, kind) for n, (kind, _) in values.items())])
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id")
    given = {name: value for name, (_, value) in values.items()}
    with table.writer() as writer:
        writer.put([{"id": 1, **given}, {"id": 2}])
        for name, value in given.items():
            found = table.sql(
                f'select id from t where "{name}" = $v', params={"v": value}, engine=engine
            )
            assert found.to_pylist() == [{"id": 1}], name


WRONG = (
    "insert into t values (9, 'x', 1.0)",
    "delete from t",
    "update t set v = 0",
    "create table x as select 1",
    "drop view t",
    "copy (select 1) to 'stolen.csv'",
    "select 1; select 2",
    "set threads = 1",
    "attach 'x.db'",
    "select nope from t",
    "selec",
    "",
)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("query", WRONG)
def test_anything_but_one_query_that_fits_is_refused(
    table: weir.Table, query: str, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(InvalidInput):
        table.sql(query, engine=engine)
    assert {path.name for path in tmp_path.iterdir()} == before
    assert table.count() == 6


@pytest.mark.parametrize("engine", ENGINES)
def test_a_query_reads_neither_files_nor_variables(
    table: weir.Table, engine: Any, tmp_path: Path
) -> None:
    secret = pa.table({"a": [1]})
    place = tmp_path / "secret.csv"
    place.write_text("a\n1\n")
    for source in ("secret", f"'{place}'", f"read_csv('{place}')", f"read_text('{place}')"):
        with pytest.raises(InvalidInput):
            table.sql(f"select * from {source}", engine=engine)
    assert secret.num_rows == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_of_the_store_stays_what_it_is(tmp_path: Path, engine: Any) -> None:
    stores = FaultyStores()
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id", env=stores.env)
    with table.writer() as writer:
        writer.put([row(1)])
        fresh = weir.open(table.uri, env=stores.env)
        store = stores.at(table.uri)
        store.on("get_range", "*/wal/01000*").deny(times=None)  # the entry at position 2
        fresh.snapshot()  # reads no entry: it is the engine's read that fails
        with pytest.raises(weir.StoreDenied):
            fresh.sql("select * from t", engine=engine)
        store.heal()
        assert fresh.sql("select * from t", engine=engine).num_rows == 1


def test_without_an_engine_it_says_what_to_install(
    table: weir.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert table.sql("select count(*) n from t")["n"].to_pylist() == [6], "DataFusion is there"
    with pytest.raises(InvalidInput, match=r"pip install 'lance-weir\[sql\]'"):
        table.sql("select 1", engine="duckdb")
    monkeypatch.setitem(sys.modules, "datafusion", None)
    with pytest.raises(InvalidInput, match=r"needs DuckDB or DataFusion.*lance-weir\[sql\]"):
        table.sql("select 1")
    with pytest.raises(InvalidInput, match="must be one of"):
        table.sql("select 1", engine="sqlite")  # type: ignore[arg-type]


def test_uuids_and_vectors_come_through(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("u", pa.uuid()), ("e", pa.list_(pa.float32(), 2))])
    table = weir.create(str(tmp_path / "my-table"), schema, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": 1, "u": UUID(int=5), "e": [1.0, 2.0]}])
        found = table.sql('select u, e from "my-table"', engine="duckdb").to_pylist()
    assert found == [{"u": str(UUID(int=5)), "e": [1.0, 2.0]}]


def test_tasks_query_too(table: weir.Table) -> None:
    async def run() -> list[dict[str, object]]:
        other = await aio.open(table.uri)
        found: list[dict[str, object]] = (await other.sql("select max(id) m from t")).to_pylist()
        return found

    assert asyncio.run(run()) == [{"m": 6}]

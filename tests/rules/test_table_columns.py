"""`add_columns`, `drop_columns`, `rename_column`, with rows in the base, SSTables and the log."""

import asyncio
import datetime as dt
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import weir
from simulator.steps import Died, dies_at, watched
from weir import aio
from weir.env import Env
from weir.errors import CommitConflict, FencedError, InvalidInput
from weir.lake.api import Base
from weir.lake.base import fold
from weir.read.loads import load_number
from weir.upkeep.compact.run import compact
from weir.upkeep.loads import PreparedLoad, load

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("price", pa.float64()),
        pa.field("qty", pa.int64()),
    ]
)


def row(number: int) -> dict[str, object]:
    return {"id": number, "price": number / 2, "qty": 10 * number}


@pytest.fixture
def table(tmp_path: Path) -> weir.Table:
    """Row 1 is in the base, row 2 in an SSTable; row 3 is for a log."""
    made = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with made.writer() as writer:
        writer.put([row(1)])
    made.compact()
    with made.writer() as writer:
        writer.put([row(2)])
    return made


def read(table: weir.Table) -> dict[int, dict[str, object]]:
    """The rows by id, the same through this handle and through a new one, scanned and looked up."""
    found = {r.pop("id"): r for r in table.scan().to_table().to_pylist()}
    other = weir.open(table.uri)
    assert {r.pop("id"): r for r in other.scan().to_table().to_pylist()} == found
    assert {r.pop("id"): r for r in other.get([1, 2, 3, 4]).to_pylist()} == found
    return found


def version(table: weir.Table) -> int:
    return int(lance.dataset(table.uri).version)


def test_added_columns_are_null_and_an_open_writer_goes_on_without_them(table: weir.Table) -> None:
    old = table.writer()
    old.put([row(3)])
    table.add_columns([pa.field("unit", pa.string()), pa.field("tags", pa.list_(pa.string()))])
    assert table.schema.names == ["id", "price", "qty", "unit", "tags"]
    old.put([row(4)])
    old.delete([2])
    with pytest.raises(CommitConflict, match="Open a new writer"):
        old.update([{"id": 1, "qty": 0}])
    with pytest.raises(CommitConflict, match="Open a new writer"):
        old.update_where("id = 1", {"qty": "0"})
    old.close()
    assert {key: (r["unit"], r["tags"]) for key, r in read(table).items()} == dict.fromkeys(
        (1, 3, 4), (None, None)
    )
    with table.writer() as writer:
        writer.put([{**row(2), "unit": "m"}])
        writer.update([{"id": 1, "unit": "kg"}])
        wanted = {1: "kg", 2: "m", 3: None, 4: None}
        assert {key: r["unit"] for key, r in read(table).items()} == wanted
    table.compact()
    assert {key: r["unit"] for key, r in read(table).items()} == wanted
    assert table.count("unit = 'kg'") == 1


def test_one_field_and_a_schema_are_columns_too(table: weir.Table) -> None:
    table.add_columns(pa.field("a", pa.int64()))
    table.add_columns(pa.schema([("b", pa.list_(pa.float32(), 2))]))
    assert table.schema.names == ["id", "price", "qty", "a", "b"]


def test_metadata_of_another_tables_field_is_left_behind(table: weir.Table) -> None:
    """A field read from another table carries its id and mark, and perhaps that of its key."""
    stranger = {
        "lance:field_id": "1",
        "weir:column": "1",
        "lance-schema:unenforced-primary-key": "true",
        "unit": "m",
    }
    mark = str(version(table)).encode()
    table.add_columns(pa.field("a", pa.int64(), metadata=stranger))
    assert weir.open(table.uri).primary_key == ("id",)
    kept = {b"unit": b"m", b"weir:column": mark}
    assert lance.dataset(table.uri).schema.field("a").metadata == kept
    with table.writer() as writer:
        writer.put([{**row(3), "a": 1}])
    assert read(table)[3]["a"] == 1


def test_computed_columns_are_filled_at_every_level_and_writers_fenced(table: weir.Table) -> None:
    old = table.writer()
    old.put([row(3)])
    table.add_columns({"total": "price * qty", "big": "qty > 15"})
    assert table.schema.field("total").type == pa.float64()
    assert table.schema.field("big").type == pa.bool_()
    wanted = {key: (key / 2 * 10 * key, 10 * key > 15) for key in (1, 2, 3)}
    assert {key: (r["total"], r["big"]) for key, r in read(table).items()} == wanted
    with pytest.raises(FencedError):
        old.put([row(4)])
    table.compact()
    assert {key: (r["total"], r["big"]) for key, r in read(table).items()} == wanted


def test_a_value_put_before_the_column_was_filled_is_kept(table: weir.Table) -> None:
    """A writer that knows the new column comes between its commit and its filling."""
    done: list[str] = []

    def beside(point: str) -> None:
        if point == "claim.probed" and not done:  # the fill's own claim: the columns exist by now
            done.append(point)
            with weir.open(table.uri).writer() as writer:
                writer.put([{**row(4), "total": -1.0}])

    handle = weir.open(table.uri, env=Env(failpoint=beside))
    handle.add_columns({"total": "price * qty", "big": "qty > 15"})
    assert done
    assert {key: (r["total"], r["big"]) for key, r in read(table).items()} == {
        1: (5.0, False),
        2: (20.0, True),
        4: (-1.0, True),
    }


def test_a_fill_that_fails_says_what_is_left_to_do(table: weir.Table) -> None:
    def beside(point: str) -> None:
        if point == "looking.looked":
            weir.open(table.uri).shard(0).writer().close()  # takes the shard over

    handle = weir.open(table.uri, env=Env(failpoint=beside))
    with pytest.raises(weir.WeirError) as failed:
        handle.add_columns({"total": "price * qty"})
    assert any("update_where('`total` IS NULL'" in note for note in failed.value.__notes__)
    with table.writer() as writer:
        writer.update_where("`total` IS NULL", {"total": "price * qty"})
    assert {key: r["total"] for key, r in read(table).items()} == {1: 5.0, 2: 20.0}


def test_dropped_columns_are_gone_everywhere_and_an_open_writer_goes_on(table: weir.Table) -> None:
    table.create_index("qty")
    old = table.writer()
    old.put([row(3)])
    table.drop_columns(["qty"])
    assert table.indexes() == []
    old.put([row(4)])
    old.delete([1])
    with pytest.raises(CommitConflict, match="open a new writer"):
        old.update([{"id": 2, "price": 0.0}])
    assert read(table) == {key: {"price": key / 2} for key in (2, 3, 4)}
    old.close()
    assert read(table) == {key: {"price": key / 2} for key in (2, 3, 4)}
    table.add_columns(pa.field("qty", pa.int64()))  # another column, though Lance gives it the id
    with table.writer() as writer:
        writer.put([{"id": 2, "price": 9.0, "qty": 9}])
        assert {key: r["qty"] for key, r in read(table).items()} == {2: 9, 3: None, 4: None}
    table.compact()
    assert {key: r["qty"] for key, r in read(table).items()} == {2: 9, 3: None, 4: None}


def test_a_renamed_column_keeps_its_rows_and_index(table: weir.Table) -> None:
    table.create_index("qty")
    old = table.writer()
    old.put([row(3)])
    table.rename_column("qty", "count")
    old.put([row(4)])
    with pytest.raises(CommitConflict, match="open a new writer"):
        old.update([{"id": 2, "qty": 0}])
    wanted = {key: {"price": key / 2, "count": 10 * key} for key in (1, 2, 3, 4)}
    assert read(table) == wanted
    old.close()
    table.compact()
    assert read(table) == wanted
    (index,) = table.indexes()
    assert (index.columns, index.rows_indexed) == (("count",), 4)
    assert table.count("count = 20") == 1


def test_a_renamed_column_keeps_the_expiry_rule(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])
    rule = weir.Expire("at", after="1h")
    table = weir.create(str(tmp_path / "t"), schema, primary_key="id", expire=rule)
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    with table.writer() as writer:
        writer.put([{"id": 1, "at": now}, {"id": 2, "at": now - dt.timedelta(days=1)}])
        table.rename_column("at", "seen")
        assert table.expire == weir.Expire("seen", after="1h")
        assert table.scan(["id"]).to_table()["id"].to_pylist() == [1]
        writer.put([{"id": 3, "at": now}, {"id": 4, "at": now - dt.timedelta(days=1)}])
    assert sorted(table.scan(["id"]).to_table()["id"].to_pylist()) == [1, 3]
    table.compact()
    assert sorted(lance.dataset(table.uri).to_table()["id"].to_pylist()) == [1, 3]
    with pytest.raises(InvalidInput, match="set_expire"):
        table.drop_columns("seen")
    table.set_expire(None)
    table.drop_columns("seen")
    assert table.schema.names == ["id"]


WRONG: dict[str, tuple[Callable[[weir.Table], object], str]] = {
    "taken": (lambda t: t.add_columns(pa.field("qty", pa.int64())), "'qty' already"),
    "twice": (lambda t: t.add_columns([pa.field("a", pa.int64())] * 2), "'a' already"),
    "not null": (lambda t: t.add_columns(pa.field("a", pa.int64(), False)), "add it as nullable"),
    "dot": (lambda t: t.add_columns(pa.field("a.b", pa.int64())), "a dot"),
    "reserved": (lambda t: t.add_columns(pa.field("_tombstone", pa.bool_())), "cannot be the name"),
    "backtick": (lambda t: t.add_columns(pa.field("a`", pa.int64())), "Lance cannot store"),
    "type": (
        lambda t: t.add_columns(pa.field("a", pa.list_(pa.string(), 2))),
        "Lance cannot store rows with this name and type",
    ),
    "no field": (lambda t: t.add_columns(["a"]), "pyarrow fields"),
    "nothing": (lambda t: t.add_columns([]), "no column was given"),
    "SQL": (lambda t: t.add_columns({"a": "cost * 2"}), r"columns \['id', 'price', 'qty'\]"),
    "computed taken": (lambda t: t.add_columns({"qty": "qty + 1"}), "'qty' already"),
    "drop nothing": (lambda t: t.drop_columns([]), "no column was given"),
    "drop unknown": (lambda t: t.drop_columns(["nope"]), r"it has \['id', 'price', 'qty'\]"),
    "drop key": (lambda t: t.drop_columns(["qty", "id"]), "part of the primary key"),
    "rename unknown": (lambda t: t.rename_column("nope", "a"), "no column 'nope'"),
    "rename key": (lambda t: t.rename_column("id", "a"), "part of the primary key"),
    "rename to taken": (lambda t: t.rename_column("qty", "price"), "'price' already"),
    "rename to odd": (lambda t: t.rename_column("qty", "a.b"), "a dot"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_the_table_cannot_have_is_refused_and_nothing_is_written(
    table: weir.Table, wrong: str
) -> None:
    before = version(table)
    act, told = WRONG[wrong]
    with pytest.raises(InvalidInput, match=told):
        act(table)
    assert version(table) == before


def test_an_append_only_table_keeps_its_sharding_column_and_one_column(tmp_path: Path) -> None:
    table = weir.create(str(tmp_path / "t"), SCHEMA, sharding=weir.Bucket("qty", 2))
    stale = weir.open(table.uri)
    with pytest.raises(InvalidInput, match="reshard"):
        table.drop_columns("qty")
    with pytest.raises(InvalidInput, match="reshard"):
        table.rename_column("qty", "count")
    with pytest.raises(InvalidInput, match="append-only"):
        table.add_columns({"total": "price * qty"})
    table.reshard(weir.Bucket("id", 2))
    with pytest.raises(InvalidInput, match="by column 'id'"):
        stale.drop_columns("id")  # a handle from before the reshard asks the record
    table.drop_columns("qty")
    table.reshard(weir.Unsharded())
    with pytest.raises(InvalidInput, match="drop the table instead"):
        table.drop_columns(["id", "price"])
    with table.writer() as writer:
        writer.put([{"id": 1, "price": 1.0}])
    assert table.count() == 1


def test_the_column_of_an_unfinished_reshard_is_kept(tmp_path: Path) -> None:
    table = weir.create(str(tmp_path / "t"), SCHEMA)
    dying = weir.open(table.uri, env=Env(failpoint=dies_at("reshard.begun")))
    with pytest.raises(Died):
        dying.reshard(weir.Bucket("qty", 2))
    with pytest.raises(InvalidInput, match="reshard"):
        table.drop_columns("qty")


def test_columns_wait_for_an_unfinished_restore(table: weir.Table) -> None:
    point = table.checkpoint("all")

    dying = weir.open(table.uri, env=Env(failpoint=dies_at("restore.announced")))
    with pytest.raises(Died):
        dying.restore(point)
    for act in (
        lambda: table.add_columns(pa.field("a", pa.int64())),
        lambda: table.drop_columns("qty"),
        lambda: table.rename_column("qty", "count"),
    ):
        with pytest.raises(CommitConflict, match="restore"):
            act()
    table.restore(point)
    table.drop_columns("qty")


def test_l7_the_last_note_of_an_unfinished_fold_is_not_dropped(tmp_path: Path) -> None:
    """Between the commit of a fold and its marks, the columns say what was folded."""
    schema = pa.schema([(f"c{number}", pa.int64()) for number in range(6)])
    table = weir.create(str(tmp_path / "t"), schema)
    with table.writer() as writer:
        writer.put([{"c5": 1}])
    told: list[str] = []

    def look(step: str) -> None:
        if step == "committed":
            try:
                weir.open(table.uri).drop_columns([f"c{number}" for number in range(5)])
            except CommitConflict as error:
                told.append(str(error.__cause__))
            assert weir.open(table.uri).count() == 1

    compact(watched(table.core, "compact", look))
    assert "about to finish" in told[0]
    table.drop_columns([f"c{number}" for number in range(5)])
    assert table.scan().to_table().to_pylist() == [{"c5": 1}]


def test_p3_the_last_note_of_a_load_is_not_dropped(tmp_path: Path) -> None:
    """A feed from before the load would go on as if nothing had happened."""
    schema = pa.schema([(f"c{number}", pa.int64()) for number in range(6)])
    table = weir.create(str(tmp_path / "t"), schema)
    rows = pa.table({name: pa.array([1], pa.int64()) for name in schema.names})

    def write(base: Base) -> PreparedLoad:
        return PreparedLoad(fold.write_rows(base, rows), 1)

    load(table.core, write, job_id="a load", replaces=False)
    with pytest.raises(InvalidInput, match="change feeds"):
        table.drop_columns([f"c{number}" for number in range(5)])
    table.drop_columns(["c0", "c5"])
    assert load_number(table.core) > 0


def test_a_commit_beside_it_is_checked_against_and_tried_again(table: weir.Table) -> None:
    done: list[str] = []

    def beside(point: str) -> None:
        if point == "columns.opened" and not done:
            done.append(point)
            lance.dataset(table.uri).add_columns(pa.field("a", pa.int64()))

    handle = weir.open(table.uri, env=Env(failpoint=beside))
    with pytest.raises(InvalidInput, match="'a' already"):
        handle.add_columns(pa.field("a", pa.int64()))
    done.clear()
    lance.dataset(table.uri).drop_columns(["a"])
    handle.rename_column("qty", "count")
    assert table.schema.names == ["id", "price", "count", "a"]


def test_readers_go_on_while_columns_change(table: weir.Table) -> None:
    """A call that changes a handle of pylance borrows it exclusively; readers have another."""

    async def run() -> None:
        other = aio.Table(table)
        done = False

        async def count() -> None:
            while not done:
                assert await other.count("price >= 0") == 2

        readers = [asyncio.create_task(count()) for _ in range(2)]
        for number in range(5):
            await other.add_columns(pa.field(f"a{number}", pa.int64()))
            await other.rename_column(f"a{number}", f"b{number}")
            await other.drop_columns([f"b{number}"])
        done = True
        await asyncio.gather(*readers)

    asyncio.run(run())
    assert table.schema.names == ["id", "price", "qty"]

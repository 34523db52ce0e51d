"""Tables by name: created, found, opened, dropped."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import weir

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


def test_tables_are_made_found_opened_and_dropped_by_name(tmp_path: Path) -> None:
    db = weir.connect(tmp_path)
    assert db.tables() == []
    made = db.create_table("orders", SCHEMA, primary_key="id", sharding=weir.Bucket("id", 2))
    assert made.uri == str(tmp_path / "orders.lance") == db.table_uri("orders")
    db.create_table("a.b-c_d", SCHEMA)
    with made.writer() as writer:
        writer.put([{"id": 1, "v": "a"}])
    assert db.tables() == ["a.b-c_d", "orders"]
    assert db.open_table("orders").count() == 1
    db.drop_table("orders")
    assert db.tables() == ["a.b-c_d"]
    assert not db.exists("orders")
    again = db.create_table("orders", SCHEMA, primary_key="id")
    assert again.count() == 0


def test_a_table_that_is_there_is_opened_when_asked_for(tmp_path: Path) -> None:
    db = weir.connect(str(tmp_path))
    with db.create_table("t", SCHEMA, primary_key="id").writer() as writer:
        writer.put([{"id": 1}])
    with pytest.raises(weir.InvalidInput, match="already"):
        db.create_table("t", SCHEMA)
    assert db.create_table("t", SCHEMA, exist_ok=True).count() == 1


def test_an_unknown_name_says_which_there_are(tmp_path: Path) -> None:
    db = weir.connect(tmp_path)
    db.create_table("orders", SCHEMA)
    with pytest.raises(weir.NotAWeirTable, match="no table 'order'; existing tables: orders"):
        db.open_table("order")
    with pytest.raises(weir.NotAWeirTable, match="existing tables: orders"):
        db.drop_table("order")
    db.drop_table("order", missing_ok=True)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "ns$t", "é"])
def test_a_name_that_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(weir.InvalidInput, match="valid table name"):
        weir.connect(tmp_path).table_uri(name)


def test_datasets_of_lance_are_no_weir_tables(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "plain.lance"))
    assert weir.connect(tmp_path).tables() == []
    assert not weir.exists(tmp_path / "plain.lance")


def test_a_damaged_table_is_named_and_hides_no_other(tmp_path: Path) -> None:
    db = weir.connect(tmp_path)
    db.create_table("good", SCHEMA)
    (tmp_path / "bad.lance" / "_weir" / "table").mkdir(parents=True)
    (tmp_path / "bad.lance" / "_weir" / "table" / f"{1:020}.json").write_text("{garbage")
    assert db.tables() == ["bad", "good"]
    with pytest.raises(weir.errors.CorruptEntry):
        db.open_table("bad")


def test_tables_in_namespaces_are_named_by_lists(tmp_path: Path) -> None:
    db = weir.connect(tmp_path)
    made = db.create_table(["shop", "eu", "orders"], SCHEMA, primary_key="id")
    # Spark's catalog uses the same place for lake.shop.eu.orders.
    assert made.uri == str(tmp_path / "shop" / "eu" / "orders.lance")
    db.create_table(["shop", "customers"], SCHEMA)
    db.create_table("plain", SCHEMA)
    (tmp_path / "_odd").mkdir()
    assert (db.tables(), db.namespaces()) == (["plain"], ["shop"])
    assert (db.tables("shop"), db.namespaces(["shop"])) == (["customers"], ["eu"])
    assert (db.tables(["shop", "eu"]), db.namespaces(["shop", "eu"])) == (["orders"], [])
    with made.writer() as writer:
        writer.put([{"id": 1}])
    assert db.open_table(["shop", "eu", "orders"]).count() == 1
    assert weir.connect(tmp_path / "shop" / "eu").open_table("orders").count() == 1
    assert db.exists(["shop", "eu", "orders"])
    assert not db.exists(["shop", "orders"])
    with pytest.raises(weir.NotAWeirTable, match=r"shop has no .* customers; .*'eu', 'name'\]"):
        db.open_table(["shop", "orders"])
    with pytest.raises(weir.NotAWeirTable, match=r"existing tables: plain; namespaces: shop"):
        db.open_table("shop.orders")
    db.drop_table(["shop", "eu", "orders"])
    assert db.tables(["shop", "eu"]) == []


@pytest.mark.parametrize("part", ["..", "_weir", "a/b", "t.lance", ""])
def test_a_namespace_that_would_lead_elsewhere_is_refused(tmp_path: Path, part: str) -> None:
    with pytest.raises(weir.InvalidInput, match="valid namespace name"):
        weir.connect(tmp_path).table_uri([part, "t"])
    with pytest.raises(weir.InvalidInput, match="valid table name"):
        weir.connect(tmp_path).table_uri([])


def test_what_stays_of_dropped_tables_is_no_namespace(tmp_path: Path) -> None:
    """A dropped table leaves its fences (C-16), and with them its folder."""
    db = weir.connect(tmp_path)
    for name in (["shop", "a"], ["shop", "b"], ["shop", "eu", "c"]):
        db.create_table(name, SCHEMA, primary_key="id")
    weir.create(str(tmp_path / "bare"), SCHEMA, primary_key="id")
    weir.drop(str(tmp_path / "bare"))
    db.drop_table(["shop", "a"])
    assert (tmp_path / "bare").exists()
    assert (db.namespaces(), db.namespaces("shop")) == (["shop"], ["eu"])
    db.drop_table(["shop", "b"])
    assert (db.namespaces(), db.namespaces("shop")) == (["shop"], ["eu"])
    db.drop_table(["shop", "eu", "c"])
    assert db.namespaces("shop") == []
    db.create_table(["bare", "x"], SCHEMA)
    assert "bare" in db.namespaces()


def test_a_table_without_the_ending_is_no_namespace(tmp_path: Path) -> None:
    """README and quickstart make such tables; a table was made within the folder of one."""
    weir.create(str(tmp_path / "orders"), SCHEMA, primary_key="id")
    lance.write_dataset(pa.table({"a": [1]}), tmp_path / "plain")
    db = weir.connect(tmp_path)
    db.create_table(["shop", "lines"], SCHEMA)
    before = sorted(path.name for path in (tmp_path / "orders").iterdir())
    assert db.namespaces() == ["shop"]
    for name in (["orders", "x"], ["plain", "x"], ["orders", "deeper", "x"]):
        with pytest.raises(weir.InvalidInput, match="is inside the table"):
            db.create_table(name, SCHEMA)
    assert sorted(path.name for path in (tmp_path / "orders").iterdir()) == before
    with pytest.raises(weir.NotAWeirTable, match=r"without '.lance' at the end"):
        db.open_table("orders")
    with pytest.raises(weir.NotAWeirTable, match="shop"):
        db.open_table("typo")
    assert not (tmp_path / "typo").exists()

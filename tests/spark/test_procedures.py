"""CALL without a session: what the procedures do to the table."""

from pathlib import Path

import pytest

import weir
from tests.support.spark import SCHEMA, in_weir, make_table, once, put
from tests.support.tables import load_rows
from weir.errors import InvalidInput
from weir.spark.procedures import call
from weir.spark.replacing import key_of_stream


def run(table: weir.Table, procedure: str, /, **arguments: str) -> dict[str, str]:
    given = {f"weir.argument.{key}": value for key, value in arguments.items()}
    where = {"weir.procedure": f"system.{procedure}", "weir.argument.table": table.uri}
    return {f.name: f.metadata["texts"][0] for f in call({**where, **given}).fields}


def test_a_checkpoint_leaves_live_writers_alone_unless_it_is_asked_for_all(tmp_path: Path) -> None:
    table = make_table(tmp_path, buckets=1)
    with weir.open(table.uri).writer() as writer:
        writer.put([{"id": 1, "v": "a"}])
        assert run(table, "checkpoint", name="monday")["name"] == "monday"
        writer.put([{"id": 2, "v": "b"}])  # would raise FencedError
    assert in_weir(table) == once({1: "a", 2: "b"})
    assert in_weir(table, checkpoint="monday") == once({1: "a"})
    assert [c.scope for c in table.checkpoints()] == ["durable"]
    run(table, "checkpoint", name="all", scope="all")
    assert [c.scope for c in table.checkpoints()] == ["durable", "all"]
    with pytest.raises(InvalidInput, match="scope must be"):
        run(table, "checkpoint", scope="some")


def test_a_reshard_reports_the_sharding_without_opening_the_table_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second handle would lack the credentials of the first."""
    table = make_table(tmp_path)
    put(table, {1: "a"})
    run(table, "checkpoint")  # opens the table in this process

    def denied(*_args: object, **_kwargs: object) -> weir.Table:
        raise weir.StoreDenied("no credentials")

    monkeypatch.setattr(weir, "open", denied)
    assert run(table, "reshard", shard_by="bucket(id, 5)")["sharding"] == str(weir.Bucket("id", 5))


def test_history_tells_what_made_each_version_and_its_checkpoints(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    load_rows(table, {1: "a", 2: "b"}, replaces=False)
    put(table, {3: "c"})
    table.compact()
    run(table, "checkpoint", name="monday")
    where = {"weir.procedure": "system.history", "weir.argument.table": table.uri}
    told = {f.name: f.metadata["texts"] for f in call(where).fields}
    made = dict(zip(told["operation"], told["detail"], strict=True))
    assert {"compact", "load", "create", "upkeep"} <= made.keys()
    assert made["load"] == "2 rows"
    assert told["version"] == sorted(told["version"], key=int, reverse=True)
    at = told["checkpoints"].index("monday")
    assert int(told["version"][at]) == table.checkpoints()[0].base_version
    last = call({**where, "weir.argument.limit": "1"})
    assert last.fields[0].metadata["texts"] == told["version"][:1]
    assert run(table, "checkpoints")["name"] == "monday"
    table.delete_checkpoint("monday")
    none = call({**where, "weir.procedure": "system.checkpoints"})
    assert none.fields[0].metadata["texts"] == []


def test_a_name_in_backquotes_may_hold_a_dot(tmp_path: Path) -> None:
    for name in ("a.b", "c"):
        weir.create(str(tmp_path / "ns" / f"{name}.lance"), SCHEMA, primary_key="id")
    lake = {"weir.root": str(tmp_path), "weir.catalog": "lake"}
    for text in ("ns.`a.b`", "lake.ns.`a.b`", "`ns`.c", "ns.c"):
        told = {"weir.procedure": "system.checkpoints", "weir.argument.table": text}
        assert call({**lake, **told}).fieldNames() == ["none"]


def test_a_table_that_totable_made_keeps_what_its_stream_does_not_say(tmp_path: Path) -> None:
    """partitionBy, say, which Spark tells when it makes the table, and not when it writes."""
    made = weir.create(
        str(tmp_path / "t"),
        SCHEMA,
        sharding=weir.Identity("v"),
        writer_defaults=weir.WriterConfig(max_memtable_rows=5000),
    )
    key_of_stream({"path": made.uri, "primarykey": "id,v"})
    table = weir.open(made.uri)
    assert (table.primary_key, table.sharding) == (("id", "v"), weir.Identity("v"))
    assert table.writer_defaults.max_memtable_rows == 5000

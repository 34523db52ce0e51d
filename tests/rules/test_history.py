"""`table.history`: which verb made each version of the base, and what is pinned there."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import weir
from tests.rules.test_loads import write_two
from weir import aio
from weir.errors import InvalidInput
from weir.testing.faulty import FaultyStores
from weir.upkeep.loads import load

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("at", pa.timestamp("us"))])


def make(place: Path) -> weir.Table:
    return weir.create(str(place), SCHEMA, primary_key="id")


def put(table: weir.Table, *ids: int) -> None:
    with table.writer() as writer:
        writer.put([{"id": number, "v": "a"} for number in ids])


def kinds(table: weir.Table) -> list[str]:
    return [entry.kind for entry in weir.open(table.uri).history(100)]


def one_row() -> pa.Table:
    return pa.Table.from_pylist([{"id": 99, "v": "x"}], schema=SCHEMA)


VERBS: dict[str, tuple[Callable[[weir.Table], object], list[str], str]] = {
    "compact": (lambda t: t.compact(indexes=False), ["compact"], "job "),
    "create_index": (lambda t: t.create_index("v"), ["index"], "made v_idx"),
    "drop_index": (lambda t: t.drop_index("id_idx"), ["index"], "dropped id_idx"),
    "add_columns": (lambda t: t.add_columns(pa.field("x", pa.int64())), ["columns"], ""),
    "drop_columns": (lambda t: t.drop_columns("v"), ["columns"], ""),
    "rename_column": (lambda t: t.rename_column("v", "w"), ["columns"], ""),
    "set_expire": (lambda t: t.set_expire(weir.Expire("at", after="1h")), ["expire"], ""),
    "reshard": (lambda t: t.reshard(weir.Bucket("id", 2), compact=False), ["reshard"], "routing 1"),
    "another program's append": (
        lambda t: lance.write_dataset(one_row(), t.uri, mode="append"),
        ["append"],
        "",
    ),
    "another program's update": (
        lambda t: lance.dataset(t.uri).update({"v": "'z'"}),
        ["update"],
        "",
    ),
    "another program's delete": (lambda t: lance.dataset(t.uri).delete("id = 1"), ["delete"], ""),
    "another program's restore": (
        lambda t: lance.dataset(t.uri, version=lance.dataset(t.uri).version - 1).restore(),
        ["restore"],
        "",
    ),
    "rewritten files": (
        lambda t: (
            lance.dataset(t.uri).delete("id = 1"),
            lance.dataset(t.uri).optimize.compact_files(materialize_deletions_threshold=0.0),
        ),
        ["rewrite", "delete"],
        "",
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_is_told_by_its_name(tmp_path: Path, verb: str) -> None:
    table = make(tmp_path / "t")
    put(table, 1, 2, 3)
    table.compact()
    table.create_index("id")
    assert kinds(table) == ["index", "compact", "create"]
    put(table, 4)
    act, wanted, detail = VERBS[verb]
    act(table)
    entries = table.history()
    assert [entry.kind for entry in entries] == [*wanted, "index", "compact", "create"]
    assert entries[0].detail.startswith(detail)
    assert entries[0].version == lance.dataset(table.uri).version or verb == "compact"


def test_a_bulk_load_is_told_with_its_rows(tmp_path: Path) -> None:
    table = weir.create(
        str(tmp_path / "t"),
        pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())]),
        primary_key="id",
    )
    load(table.core, write_two, job_id="load", replaces=False)
    (entry, first) = table.history()
    assert (entry.kind, entry.detail) == ("load", "2 rows")
    assert first.kind == "create"


def test_a_restore_names_its_checkpoint_and_pins_are_at_their_versions(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    put(table, 1)
    table.compact()
    point = table.checkpoint("all", name="nightly")
    unnamed = table.checkpoint("durable")
    before = datetime.now(UTC)
    put(table, 2)
    table.compact()
    report = table.restore("nightly")
    entries = table.history()
    assert (entries[0].kind, entries[0].detail) == ("restore", f"checkpoint {point.id}")
    assert abs(entries[0].at - before) < timedelta(minutes=5)
    at = {name: entry for entry in entries for name in entry.checkpoints}
    assert at["nightly"].version == point.base_version
    assert at[str(unnamed.id)].version == unnamed.base_version
    undo = report.undo
    assert at[undo.name or str(undo.id)].version == undo.base_version, "though it is upkeep"
    copy = table.clone(str(tmp_path / "copy"), "nightly")
    (first,) = copy.history()
    assert (first.kind, first.detail) == (
        "clone",
        f"of {table.uri}, checkpoint {point.id}",
    )
    assert copy.uri in {name for entry in table.history() for name in entry.checkpoints}
    deep = table.clone(str(tmp_path / "deep"), "nightly", deep=True)
    assert [entry.kind for entry in deep.history()] == ["clone"]


def test_what_was_collected_is_not_told_of(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    for number in range(3):
        put(table, number)
        table.compact()
    assert kinds(table) == ["compact", "compact", "compact", "create"]
    assert table.gc(min_age=0).ok
    left = table.history(upkeep=True)
    assert [entry.version for entry in left] == [lance.dataset(table.uri).version]


def test_a_limit_bounds_the_entries_and_the_reads(tmp_path: Path) -> None:
    stores = FaultyStores()
    made = make(tmp_path / "t")
    for number in range(12):
        put(made, number)
        made.compact()
    table = weir.open(made.uri, env=stores.env)
    assert [entry.kind for entry in table.history(3)] == ["compact"] * 3
    assert len(table.history(limit=100)) == 13
    every = table.history(100, upkeep=True)
    assert [entry.version for entry in every] == list(range(every[0].version, 0, -1))
    assert {entry.kind for entry in every} == {"compact", "create", "upkeep"}
    store = stores.at(table.uri)
    before = len(store.events())
    table.history(3)
    assert len(store.events()) - before <= 4, "one listing of the versions, one of checkpoints"
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(InvalidInput, match="limit"):
            table.history(wrong)  # type: ignore[arg-type]


def test_versions_without_an_entry_are_not_looked_for_without_end(tmp_path: Path) -> None:
    """Each claim of a compaction that finds nothing to fold leaves a fence."""
    table = make(tmp_path / "t")
    for _ in range(15):
        table.core.lake.fence_base("nobody")  # type: ignore[attr-defined]
    assert table.history(1) == []
    assert [entry.kind for entry in table.history(2)] == ["create"]


def test_tasks_ask_for_it_too(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    entries = asyncio.run(aio.Table(table).history())  # type: ignore[arg-type]
    assert [entry.kind for entry in entries] == ["create"]

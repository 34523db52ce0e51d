"""L-8: a base overwritten, or stripped of its MemWAL index, by another program is an error.

The tests do what LanceDB does in `mode="overwrite"` and `unset_lsm_write_spec`, with pylance.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.dataset import Index, LanceOperation

import weir
from simulator.steps import watched
from tests.rules.test_fold_beside_commits import make, one, put, rows_of
from weir.cli.checks import check_table
from weir.errors import CorruptEntry
from weir.upkeep.compact.run import compact

MEM_WAL = "__lance_mem_wal"


def overwrite(table: weir.Table) -> None:
    lance.write_dataset(one(7, "stranger"), table.uri, mode="overwrite")


def drop_index(table: weir.Table) -> None:
    dataset = lance.dataset(table.uri)
    (uuid,) = (s.uuid for i in dataset.describe_indices() if i.name == MEM_WAL for s in i.segments)
    gone = Index(uuid, MEM_WAL, [], dataset.version, set(), 0)  # type: ignore[arg-type]
    operation = LanceOperation.CreateIndex(new_indices=[], removed_indices=[gone])
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)


STRANGERS: dict[str, Callable[[weir.Table], None]] = {
    "overwrite": overwrite,
    "drop the index": drop_index,
}

VERBS: dict[str, Callable[[weir.Table], Any]] = {
    "scan": lambda t: t.scan().to_table(),
    "scan of the base": lambda t: t.scan(freshness="base").to_table(),
    "get": lambda t: t.get([1]),
    "open a writer": lambda t: t.writer().put([{"id": 1, "v": "x"}]),
    "compact": lambda t: t.compact(),
    "gc": lambda t: t.gc(min_age=0),
    "stats": lambda t: t.stats(),
    "checkpoint": lambda t: t.checkpoint(),
    "checkpoint of all": lambda t: t.checkpoint(scope="all"),
    "clone": lambda t: t.clone(f"{t.uri}-clone"),
    "deep clone": lambda t: t.clone(f"{t.uri}-clone", deep=True),
    "add_columns": lambda t: t.add_columns(pa.field("x", pa.int64())),
    "drop_columns": lambda t: t.drop_columns("v"),
    "rename_column": lambda t: t.rename_column("v", "w"),
    "set_expire": lambda t: t.set_expire(None),
    "create_index": lambda t: t.create_index("v"),
    "drop_index": lambda t: t.drop_index("v_idx"),
    "indexes": lambda t: t.indexes(),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("stranger", STRANGERS)
def test_l8_every_verb_names_what_happened_to_the_base(
    tmp_path: Path, stranger: str, verb: str
) -> None:
    table = make(tmp_path, keyed=True)
    put(table, {1: "base", 2: "base"})
    table.compact()
    put(table, {1: "waits"})
    STRANGERS[stranger](table)
    before = lance.dataset(table.uri).version
    for handle in (table, weir.open(table.uri)):
        with pytest.raises(CorruptEntry, match="Another program overwrote the base"):
            VERBS[verb](handle)
    assert lance.dataset(table.uri).version == before, "nothing was done to the base"
    assert table.checkpoints() == []
    assert not Path(f"{table.uri}-clone").exists()


@pytest.mark.parametrize("stranger", STRANGERS)
def test_l8_doctor_calls_it_bad_and_a_restore_repairs_it(tmp_path: Path, stranger: str) -> None:
    table = make(tmp_path, keyed=True)
    put(table, {1: "base", 2: "base"})
    table.compact()
    put(table, {1: "waits"})
    good = lance.dataset(table.uri).version
    assert {finding.state for finding in check_table(table.uri, {})} == {"ok"}
    STRANGERS[stranger](table)
    (found,) = check_table(table.uri, {})
    assert found.state == "bad"
    assert "Another program overwrote the base" in found.detail
    lance.dataset(table.uri, version=good).restore()
    assert rows_of(weir.open(table.uri)) == Counter({(1, "waits"): 1, (2, "base"): 1})
    table.compact()
    assert rows_of(table) == Counter({(1, "waits"): 1, (2, "base"): 1})


def test_l8_a_checkpoint_repairs_an_overwritten_table(tmp_path: Path) -> None:
    table = make(tmp_path, keyed=True)
    put(table, {1: "base"})
    table.compact()
    pinned = table.checkpoint(scope="all", name="good")
    overwrite(table)
    table.restore(pinned)
    assert rows_of(weir.open(table.uri)) == Counter({(1, "base"): 1})


def test_l8_an_index_dropped_in_the_middle_of_a_compaction_stops_it(tmp_path: Path) -> None:
    table = make(tmp_path, keyed=True)
    put(table, {1: "one"})

    def meddle(step: str) -> None:
        if step == "written":
            drop_index(table)

    with pytest.raises(CorruptEntry, match="MemWAL index is gone"):
        compact(watched(table.core, "compact", meddle))
    assert lance.dataset(table.uri).count_rows() == 0, "nothing was folded"


def test_l8_a_key_column_that_was_dropped_is_told_and_comes_back_with_its_version(
    tmp_path: Path,
) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
    table = weir.create(tmp_path / "t", schema, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "old"}])
    table.compact()
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "new"}])
    dataset = lance.dataset(table.uri)
    whole = dataset.version
    dataset.drop_columns(["id"])
    reopened = weir.open(table.uri)
    for use in (
        lambda: reopened.scan().to_table(),
        lambda: table.scan().to_table(),
        lambda: table.get([1]),
        lambda: table.compact(),
        lambda: table.writer().put([{"id": 2, "v": "c"}]),
    ):
        with pytest.raises(weir.CorruptEntry, match=r"primary key is none instead of \['id'\]"):
            use()
    lance.dataset(table.uri, version=whole).restore()  # as the message says
    assert weir.open(table.uri).scan().to_table().to_pylist() == [{"id": 1, "v": "new"}]

"""X-10: pylance's own readers find the newest rows after compactions, loads and overwrites.

They take every SSTable that a manifest lists for newer than the base, folded or not. Folded
SSTables stay listed for readers with an older base (X-4). So nothing newer may get into the base
past them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import weir
from tests.support.moments import again, make, put, rows
from weir.lake.api import Base
from weir.lake.base import fold
from weir.upkeep.loads import PreparedLoad, load

LOG_ONLY = weir.WriterConfig(enable_memtable=False)


def native_rows(table: weir.Table) -> dict[int, str]:
    """The table's rows as pylance's writer of its only shard reads them."""
    (shard,) = table.core.shard_ids()
    with lance.dataset(table.uri).mem_wal_writer(str(shard)) as writer:
        found = writer.lsm_scanner().to_table().to_pylist()
    return {row["id"]: row["v"] for row in found}


def compacted(tmp_path: Path) -> weir.Table:
    """Rows 1 to 3 in the base, and in an SSTable that is still listed."""
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, [1, 2, 3], "a")
    table.compact()
    (shard,) = table.shards()
    assert shard.manifest().sstables
    return table


@pytest.mark.parametrize("fold_wal", [None, True])
@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
def test_x10_a_log_is_not_folded_past_a_listed_sstable(
    tmp_path: Path, is_open: bool, fold_wal: bool | None
) -> None:
    table = compacted(tmp_path)
    writer = again(table).writer(LOG_ONLY)
    put(writer, [1], "b")
    writer.delete([2])
    if not is_open:
        writer.close()
    report = again(table).compact(fold_wal=fold_wal)
    want = {1: "b", 3: "a"}
    assert rows(again(table)) == want
    is_folded = not is_open or fold_wal
    assert (rows(again(table), freshness="base") == want) == bool(is_folded), report
    assert native_rows(table) == want
    again(table).compact(fold_wal=True)
    again(table).gc(min_age=0)
    assert native_rows(table) == rows(again(table)) == want


def test_x10_a_log_goes_straight_into_the_base_where_nothing_is_listed(tmp_path: Path) -> None:
    table = compacted(tmp_path)
    again(table).gc(min_age=0)
    writer = again(table).writer(LOG_ONLY)
    put(writer, [1], "b")
    writer.delete([2])
    # The fence of the last claim is one; the last entry stays until its writer has left.
    assert again(table).compact().wal_entries == 2
    assert not table.shards()[0].manifest().sstables
    put(writer, [4], "its writer goes on")
    writer.close()
    want = {1: "b", 3: "a", 4: "its writer goes on"}
    assert native_rows(table) == rows(again(table)) == want


def _load(table: weir.Table, *, replaces: bool) -> None:
    def write(base: Base) -> PreparedLoad:
        new = pa.Table.from_pylist([{"id": 1, "v": "loaded"}], schema=base.schema.plain)
        gone = fold.VersionEdit()
        if not replaces:
            keys = new.select(["id"]).cast(base.schema.key_schema)
            gone = fold.delete_keys(base, keys, table.core.env)
        return PreparedLoad(fold.combine([fold.write_rows(base, new), gone]), 1)

    load(table.core, write, job_id="job", replaces=replaces)


LOADS: dict[str, tuple[Callable[[weir.Table], Any], dict[int, str]]] = {
    "load": (lambda t: _load(t, replaces=False), {1: "loaded", 2: "waits", 3: "a"}),
    "overwrite": (lambda t: _load(t, replaces=True), {1: "loaded"}),
}


@pytest.mark.parametrize("kind", LOADS)
def test_x10_a_load_takes_the_sstables_that_it_passed_out_of_the_manifest(
    tmp_path: Path, kind: str
) -> None:
    table = compacted(tmp_path)
    with again(table).writer() as writer:
        put(writer, [2], "waits")
    run, want = LOADS[kind]
    run(again(table))
    assert rows(again(table)) == want
    assert native_rows(table) == want

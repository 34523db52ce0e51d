"""Marks that no weir has raised: the table says which object is wrong, and nothing spins (G-13)."""

import pytest

from tests.support.moments import again, make, put, rows
from weir.errors import CorruptEntry
from weir.format import paths

VERBS = (
    lambda table: rows(table),
    lambda table: table.checkpoint(),
    lambda table: table.shards()[0].writer(),
    lambda table: list(table.changes()),
)


@pytest.mark.parametrize("kind", ["wal", "manifest", "used", "statement", "place"])
def test_g13_a_mark_that_no_shard_can_reach_is_named(tmp_path, kind):
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, range(5), "a")
    path = paths.mark_path(paths.floor_dir(table.shards()[0].id, kind), 2**64 - 1)
    table.core.store.put(path, b"")
    for verb in VERBS:
        with pytest.raises(CorruptEntry, match="no shard gets that far") as told:
            verb(again(table))
        assert path in str(told.value)


def test_g13_a_record_with_a_number_that_no_chain_reaches_is_named(tmp_path):
    table = make(tmp_path / "t", 1)
    store = table.core.store
    path = paths.chain_path(paths.table_chain(), 2**64 - 1)
    store.put(path, store.get(paths.chain_path(paths.table_chain(), 1)).data)
    for verb in VERBS:
        with pytest.raises(CorruptEntry, match="delete that object") as told:
            verb(again(table))
        assert path in str(told.value)

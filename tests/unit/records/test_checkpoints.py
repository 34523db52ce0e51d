"""How a checkpoint is found: by its id with few requests, or by its name among all."""

import re
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.tables import CountingStore
from weir.errors import CheckpointNotFound, CorruptEntry
from weir.format import paths
from weir.records.checkpoints import Checkpoint
from weir.records.holds import Holds
from weir.store.open import open_store


def _id(number: int) -> UUID:
    return UUID(int=number)


def _made(records: Holds, number: int, name: str | None) -> Checkpoint:
    checkpoint = Checkpoint(
        id=_id(number),
        scope="all",
        created=float(number),
        base_version=1,
        routing_version=1,
        shards=(),
        name=name,
    )
    return records.confirm(records.announce(checkpoint, pending_until=1e12), expires=None)


def test_an_id_as_text_is_found_without_reading_the_others(tmp_path: Path) -> None:
    store = CountingStore(open_store(str(tmp_path)))
    records = Holds(store)
    for number in range(1, 30):
        _made(records, number, "nightly")
    store.reset()
    assert records.find(str(_id(7))).id == _id(7)
    assert store.requests <= 3


def test_checkpoints_are_read_in_few_rounds_however_many_there_are(tmp_path: Path) -> None:
    store = CountingStore(open_store(str(tmp_path)))
    records = Holds(store)
    for number in range(1, 40):
        _made(records, number, f"n{number}")
    store.reset()
    assert records.find("n7").id == _id(7)
    assert [found.id for found in records.checkpoints()] == [_id(number) for number in range(1, 40)]
    assert records.clone_pins() == []
    assert store.calls["get"] == 0
    assert store.calls["get_many"] == 3


def test_a_name_is_its_newest_checkpoint_even_if_it_looks_like_an_id(tmp_path: Path) -> None:
    records = Holds(open_store(str(tmp_path)))
    run = str(_id(1000))  # an application names checkpoints by its own ids
    _made(records, 1, run)
    _made(records, 2, run)
    assert records.find(run).id == _id(2)
    assert [found.id for found in records.matching(run)] == [_id(1), _id(2)]


def test_an_announced_checkpoint_is_not_found_by_its_id(tmp_path: Path) -> None:
    records = Holds(open_store(str(tmp_path)))
    made = _made(records, 1, None)
    records.announce(
        Checkpoint(_id(2), "all", made.created, 1, 1, ()), pending_until=made.created + 60
    )
    with pytest.raises(CheckpointNotFound):
        records.find(str(_id(2)))


def test_a_damaged_record_is_named_with_its_table(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    records = Holds(store)
    made = _made(records, 1, None)
    (first, *_) = sorted(meta.path for meta in store.list(paths.checkpoint_chain(made.id)))
    store.put(first, b"{")
    with pytest.raises(CorruptEntry, match=re.escape(f"{store.uri}/{first}")):
        records.find(made.id)

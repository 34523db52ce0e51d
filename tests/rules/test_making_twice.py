"""Two processes that make a table at one place at the same moment."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from uuid import UUID

import lance
import pyarrow as pa
import pytest

import weir
from tests.support.local_shard import QuickClock
from tests.support.stores import StoreKind
from weir.env import Env
from weir.lake.base import adopt

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def test_the_slower_of_two_creators_is_told_so(
    table_uri: str, store_kind: StoreKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, options, create = table_uri, store_kind.storage_options, adopt.create_base

    def overtaken(*args: object, **given: object) -> object:
        monkeypatch.setattr(adopt, "create_base", create)
        weir.create(uri, SCHEMA, primary_key="id", storage_options=options)
        return create(*args, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(adopt, "create_base", overtaken)
    with pytest.raises(weir.CommitConflict, match="another process"):
        weir.create(uri, SCHEMA, primary_key="id", storage_options=options)
    assert weir.open(uri, storage_options=options).count() == 0


def test_with_exist_ok_the_slower_creator_gets_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, create = weir.connect(str(tmp_path)), adopt.create_base

    def overtaken(*args: object, **options: object) -> object:
        monkeypatch.setattr(adopt, "create_base", create)
        database.create_table("t", SCHEMA, primary_key="id")
        return create(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(adopt, "create_base", overtaken)
    assert database.create_table("t", SCHEMA, primary_key="id", exist_ok=True).count() == 0


def test_of_creators_at_one_moment_one_makes_the_base(tmp_path: Path) -> None:
    """Lance's own `create` repeats a lost race as an overwrite: in one of six tries here."""
    start = Barrier(3)

    def create(uri: str, column: str) -> str | None:
        start.wait()
        try:
            adopt.create_base(uri, SCHEMA.append(pa.field(column, pa.utf8())), ("id",), None)
        except weir.CommitConflict:
            return None
        return column

    with ThreadPoolExecutor(3) as pool:
        for number in range(50):
            uri = str(tmp_path / str(number))
            made = [name for name in pool.map(create, [uri] * 3, "abc") if name is not None]
            assert lance.dataset(uri).schema.names == ["id", *made]


def test_creators_at_one_moment_share_a_table_only_if_its_columns_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, attach = str(tmp_path / "t"), adopt.initialize_mem_wal

    def replaced(*args: object) -> None:
        monkeypatch.setattr(adopt, "initialize_mem_wal", attach)
        attach(*args)  # type: ignore[arg-type]
        shutil.rmtree(uri)
        weir.create(uri, SCHEMA.append(pa.field("v", pa.utf8())), primary_key="id")

    monkeypatch.setattr(adopt, "initialize_mem_wal", replaced)
    with pytest.raises(weir.CommitConflict):
        weir.create(uri, SCHEMA, primary_key="id")


def test_those_that_make_one_table_of_a_dataset_both_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, attach = str(tmp_path / "t"), adopt.initialize_mem_wal
    lance.write_dataset(SCHEMA.empty_table(), uri)
    enabled: list[weir.Table] = []

    def overtaken(*args: object) -> None:
        monkeypatch.setattr(adopt, "initialize_mem_wal", attach)
        attach(*args)  # type: ignore[arg-type]
        enabled.append(weir.enable(uri, primary_key="id"))

    monkeypatch.setattr(adopt, "initialize_mem_wal", overtaken)
    second = weir.enable(uri, primary_key="id")
    with second.writer() as writer:
        writer.put([{"id": 1}])
    assert enabled[0].count() == 1


def test_creators_at_one_moment_all_get_the_table_with_exist_ok(tmp_path: Path) -> None:
    """One that found the base without the record took it for another program's dataset."""
    start = Barrier(5)

    def create(folder: Path) -> UUID:
        start.wait()
        database = weir.connect(folder)
        table = database.create_table("t", SCHEMA, primary_key="id", exist_ok=True)
        return table.core.record.table_id

    with ThreadPoolExecutor(5) as pool:
        for number in range(12):
            assert len(set(pool.map(create, [tmp_path / str(number)] * 5))) == 1


def test_a_dataset_that_stays_one_is_refused_with_exist_ok(tmp_path: Path) -> None:
    lance.write_dataset(SCHEMA.empty_table(), tmp_path / "t.lance")
    database = weir.connect(tmp_path, env=Env(clock=QuickClock()))
    with pytest.raises(weir.InvalidInput, match="is a Lance dataset already"):
        database.create_table("t", SCHEMA, exist_ok=True)

"""Tables, shards and scans can be sent to other processes, and are up to date there."""

import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import weir

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


def counted(scan: weir.Scan) -> int:
    return scan.count()


def test_a_pickled_table_is_opened_again_and_reads_fresh_rows(tmp_path: Path) -> None:
    table = weir.create(tmp_path / "t", SCHEMA, primary_key="id", storage_options={"timeout": "9s"})
    body = pickle.dumps([table, table.shards()[0], table.scan(filter=pc.field("id") > 1)])
    with table.writer() as writer:
        writer.put([{"id": n} for n in range(4)])
    again, shard, scan = pickle.loads(body)
    assert again.count() == 4
    assert again.core.storage_options == {"timeout": "9s"}
    assert shard.id == table.shards()[0].id
    assert scan.count() == 2
    assert copy.deepcopy(table).uri == table.uri


def test_a_scan_runs_in_another_process(tmp_path: Path) -> None:
    table = weir.create(tmp_path / "t", SCHEMA, primary_key="id")
    with table.writer() as writer:
        writer.put([{"id": n} for n in range(4)])
    point = table.checkpoint()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        scans = [table.scan(limit=3), table.scan(checkpoint=point)]
        assert list(pool.map(counted, scans)) == [3, 4]
        snapshot = table.snapshot()
        assert pool.submit(copy.copy, snapshot).result() == snapshot


def test_credentials_of_the_environment_do_not_travel(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    table = weir.create(tmp_path / "t", SCHEMA)
    assert b"very-secret" not in pickle.dumps(table)

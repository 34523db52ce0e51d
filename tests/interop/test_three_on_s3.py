"""The three programs together once on an object store: SeaweedFS, through its S3 interface."""

import uuid

import lance
import pyarrow as pa
import pytest

import weir
from tests.conftest import BUCKET
from tests.interop.test_lancedb import SCHEMA, merge, ours
from weir.errors import FencedError
from weir.testing.seaweed import SeaweedServer

lancedb = pytest.importorskip("lancedb")

pytestmark = pytest.mark.interop


def test_x1_each_keys_newest_acknowledged_row_is_there_once_on_an_object_store(
    s3: SeaweedServer,
) -> None:
    options, place = s3.storage_options(), f"s3://{BUCKET}/{uuid.uuid4().hex}"
    uri = f"{place}/t.lance"
    table = weir.create(uri, SCHEMA, primary_key="id", storage_options=options)
    with table.writer() as writer:
        writer.put([{"id": n, "v": "weir"} for n in range(4)])
    handle = lancedb.connect(place, storage_options=options).open_table("t")
    merge(handle, (1, "lancedb"), (4, "lancedb"))
    want = {0: "weir", 1: "lancedb", 2: "weir", 3: "weir", 4: "lancedb"}
    assert ours(table) == want  # from a log that LanceDB did not flush
    killed = weir.open(uri, storage_options=options).writer()
    killed.put([{"id": 2, "v": "weir again"}])  # left in the log, as after a kill
    dataset = lance.dataset(uri, storage_options=options)
    with dataset.mem_wal_writer(str(table.shards()[0].id)) as native:
        native.put(pa.table({"id": [3], "v": ["pylance"]}, schema=SCHEMA))
    want |= {2: "weir again", 3: "pylance"}
    with pytest.raises(FencedError):
        killed.put([{"id": 2, "v": "late"}])
    with pytest.raises(RuntimeError, match="fenced"):
        merge(handle, (1, "late"))
    assert ours(table) == want
    weir.open(uri, storage_options=options).compact()
    assert table.gc(min_age=0).ok
    fresh = lancedb.connect(place, storage_options=options).open_table("t")
    theirs = fresh.search().limit(100).to_list()
    assert {row["id"]: row["v"] for row in theirs} == want
    assert len(theirs) == len(want)
    merge(fresh, (5, "lancedb"))
    fresh.close_lsm_writers()
    assert ours(table) == want | {5: "lancedb"}

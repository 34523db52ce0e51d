"""Tables on stores that fail on command."""

import pyarrow as pa
import pytest

import weir
from weir.testing.faulty import FaultyStores

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
ENTRIES = "*/wal/*"


@pytest.fixture
def faulty():
    return FaultyStores()


def test_a_lost_answer_is_settled_and_the_row_is_there_once(faulty, tmp_path):
    table = weir.create(str(tmp_path / "t"), SCHEMA, env=faulty.env)
    store = faulty.at(table.uri)
    with table.writer() as writer:
        writer.put([{"id": 1}])
        store.on("put_if_absent", ENTRIES).fail_after()
        writer.put([{"id": 2}])
    assert "fail_after" in {event.outcome for event in store.events("put_if_absent", ENTRIES)}
    assert weir.open(table.uri).scan().to_table()["id"].to_pylist() == [1, 2]


def test_a_store_of_its_own_for_the_log_has_faults_of_its_own(faulty, tmp_path):
    wal = str(tmp_path / "wal")
    table = weir.create(str(tmp_path / "t"), SCHEMA, wal_uri=wal, env=faulty.env)
    faulty.at(wal).on("put_if_absent", ENTRIES, skip=1).deny(times=None)
    writer = table.writer()
    with pytest.raises(weir.WriterClosed) as closed:
        writer.put([{"id": 1}])
    assert isinstance(closed.value.__cause__, weir.StoreDenied)
    assert faulty.at(table.uri).events("put_if_absent", ENTRIES) == []


def test_denied_credentials_reach_the_caller(faulty, tmp_path):
    table = weir.create(str(tmp_path / "t"), SCHEMA, env=faulty.env)
    faulty.at(table.uri).on("write").deny(times=None)
    with pytest.raises(weir.StoreDenied):
        table.writer().put([{"id": 1}])

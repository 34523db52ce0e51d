"""`weir stats`, `weir top` and `weir checkpoint list` read the store's time, which takes a write:
a person on call with read-only access saw an error instead of the table."""

import pytest

import weir
from tests.support.moments import SCHEMA
from weir.cli import main
from weir.errors import StoreDenied
from weir.store.local import LocalStore

WRITES = ("put", "put_if_absent", "put_parts", "delete", "now")
READS = [
    ["stats"],
    ["shards"],
    ["top", "--once", "--interval", "0.1"],
    ["checkpoint", "list"],
    ["scan"],
    ["scan", "--checkpoint", "nightly"],
    ["tail", "--no-follow"],
    ["get", "1"],
]


@pytest.fixture
def table(tmp_path):
    made = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    made.checkpoint(name="nightly", scope="durable", ttl="1h")
    writer = made.shard(0).writer()
    writer.put([{"id": 1}])  # stays in the log
    yield made
    writer.close()


@pytest.mark.parametrize("words", READS, ids=" ".join)
def test_a_command_that_reads_needs_no_right_to_write(table, words, monkeypatch):
    def denied(*_, **__):
        raise StoreDenied("read only")

    for name in WRITES:
        monkeypatch.setattr(LocalStore, name, denied)
    place = 2 if words[0] == "checkpoint" else 1
    assert main([*words[:place], table.uri, *words[place:]]) == 0
    monkeypatch.undo()  # before the writer closes

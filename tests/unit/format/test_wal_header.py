"""The first bytes of an entry identify its writer, and never wrongly say that it has no token."""

import pyarrow as pa
import pytest

from tests.support.shards import schema
from weir.format.ipc_guard import Truncated
from weir.format.schema import TableSchema
from weir.format.wal_entry import EntryEncoder, encode_fence
from weir.format.wal_header import Carries, read_header

SCHEMA = schema()
TOKEN = (("app", 3),)
WORDS = pa.dictionary(pa.int32(), pa.string())


def entry(tokens=()) -> bytes:
    rows = [{"id": 1, "x": 1.0, "s": "a" * 5000, "_tombstone": False}]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA.wal)
    encoder = EntryEncoder(SCHEMA)
    return bytes(encoder.encode([batch], epoch=7, generation=2, entry_id="e", tokens=tokens))


def with_dictionaries(tokens=()) -> bytes:
    """An entry in whose bytes two dictionaries come before the rows."""
    fields = [pa.field("id", pa.int64()), pa.field("d", WORDS), pa.field("e", WORDS)]
    table = TableSchema(pa.schema(fields), (), 2)
    columns = [[1], pa.array(["w" * 900]).cast(WORDS), pa.array(["v" * 900]).cast(WORDS), [False]]
    batch = pa.RecordBatch.from_arrays([pa.array(c) for c in columns], schema=table.wal)
    encoder = EntryEncoder(table)
    return bytes(encoder.encode([batch], epoch=7, generation=2, entry_id="e", tokens=tokens))


def test_the_epoch_is_found_in_a_prefix() -> None:
    data = entry()
    assert len(data) > 5000
    header = read_header(data[:2000])
    assert (header.epoch, header.tokens) == (7, Carries.NO)


def test_a_fence_has_an_epoch_and_no_token() -> None:
    header = read_header(bytes(encode_fence(9, "f")))
    assert (header.epoch, header.tokens) == (9, Carries.NO)


@pytest.mark.parametrize("make", [entry, with_dictionaries])
@pytest.mark.parametrize("tokens", [(), TOKEN])
def test_p2_every_prefix_says_the_truth_or_that_it_does_not_know(make, tokens) -> None:
    data = make(tokens)
    truth = Carries.YES if tokens else Carries.NO
    said = []
    for length in range(len(data) + 1):
        try:
            header = read_header(data[:length])
        except Truncated:
            said.append(None)
            continue
        assert header.epoch == 7
        said.append(header.tokens)
    assert set(said) == {None, Carries.UNKNOWN, truth}
    assert said == sorted(said, key=[None, Carries.UNKNOWN, truth].index), "it never forgets"
    assert said[-1] is truth


@pytest.mark.parametrize("data", [b"", entry()[:40]])
def test_too_few_bytes_are_not_taken_for_damage(data: bytes) -> None:
    with pytest.raises(Truncated):
        read_header(data)


@pytest.mark.parametrize("data", [b"x" * 100, b"\xff\xff\xff\xff\0\0\0\0", b"\0" * 40])
def test_what_is_no_entry_has_no_header(data: bytes) -> None:
    with pytest.raises(ValueError, match="it "):
        read_header(data)

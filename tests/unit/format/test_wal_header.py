"""The first bytes of an entry identify its writer, and never wrongly say that it has no token."""

import pyarrow as pa
import pytest

from tests.support.shards import schema
from weir.format.wal_entry import EntryEncoder, encode_fence
from weir.format.wal_header import read_header

SCHEMA = schema()


def entry(tokens=()) -> bytes:
    rows = [{"id": 1, "x": 1.0, "s": "a" * 5000, "_tombstone": False}]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA.wal)
    encoder = EntryEncoder(SCHEMA)
    return bytes(encoder.encode([batch], epoch=7, generation=2, entry_id="e", tokens=tokens))


def test_the_epoch_is_found_in_a_prefix() -> None:
    data = entry()
    assert len(data) > 5000
    header = read_header(data[:2000])
    assert header is not None
    assert header.epoch == 7
    assert not header.may_hold_tokens


def test_a_fence_has_an_epoch_and_no_token() -> None:
    header = read_header(bytes(encode_fence(9, "f")))
    assert header is not None
    assert (header.epoch, header.may_hold_tokens) == (9, False)


@pytest.mark.parametrize("tokens", [(), (("app", 3),)])
def test_no_prefix_denies_a_token_that_is_there(tokens) -> None:
    data = entry(tokens)
    for length in range(0, 3000, 7):
        header = read_header(data[:length])
        if header is not None and tokens:
            assert header.may_hold_tokens, length
    assert read_header(data).may_hold_tokens == bool(tokens)


@pytest.mark.parametrize("data", [b"", b"x" * 100, entry()[:40]])
def test_what_is_no_entry_has_no_header(data: bytes) -> None:
    assert read_header(data) is None

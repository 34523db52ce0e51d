"""The ids of shards, against LanceDB's (X-1)."""

from uuid import UUID

import pyarrow as pa
import pytest

from weir.format.sharding import (
    FIRST_ROUTING,
    Bucket,
    Identity,
    PerWriter,
    Unsharded,
    field_entries,
    is_of_writer,
    shard_id,
    value_from_entries,
    value_of_app,
    value_of_writer,
)

T = Identity("t")


@pytest.mark.parametrize(
    ("sharding", "value", "dtype", "expected"),
    [
        # Folders that lancedb 0.40.0 made.
        (Bucket("id", 4), 0, None, "4a388480-a25b-59a8-b058-24217f980256"),
        (Bucket("other", 9), 1, None, "8e131bde-8368-54ff-89d9-c2e1cc781b29"),
        (Bucket("id", 1024), 1023, None, "29f8d42e-cc0b-50b1-8f91-2fe2c7e59562"),
        (Unsharded(), None, None, "aa48498d-ac91-59e2-8452-69f46010ace2"),
        (T, "", pa.utf8(), "3faaecb2-2ed3-5f84-b276-f84487228724"),
        (T, "tenant-a", pa.large_utf8(), "365413e3-64c5-5850-a22d-73d798b9867a"),
        (T, "\u00e9", pa.utf8(), "80edb09a-d33d-5eaf-ba92-026f03c97650"),
        (T, "e\u0301", pa.utf8(), "1ebd3b23-f56b-59c9-bd55-a2a88d0ff48f"),
        (T, "日本語", pa.utf8(), "0392ad15-1aab-5cde-a591-505b61d53e87"),
        (T, 1, pa.int8(), "a2c19f99-f09f-59d2-8990-f72d42b1e6c4"),
        (T, True, pa.bool_(), "a2c19f99-f09f-59d2-8990-f72d42b1e6c4"),
        (T, 255, pa.uint8(), "874633f6-b94e-5c15-99c3-64565f7be084"),
        (T, -1, pa.int8(), "874633f6-b94e-5c15-99c3-64565f7be084"),
        (T, 300, pa.int16(), "a782f6f8-c0ca-588c-8c68-58e5039645d3"),
        (T, -1, pa.int32(), "814bd35e-9c86-561a-9013-1bf8c8d2167e"),
        (T, 1, pa.int64(), "d2e289e0-8bef-529d-9036-907161abc5f8"),
        (T, -(2**63), pa.int64(), "2c6ce851-9e36-539f-80d8-c2a1c04b8183"),
    ],
)
def test_x1_the_first_routing_has_the_ids_that_lancedb_derives(sharding, value, dtype, expected):
    assert shard_id(sharding, value, FIRST_ROUTING, dtype) == UUID(expected)


def test_a_null_which_lancedb_refuses_has_an_id_of_its_own():
    assert shard_id(T, None, FIRST_ROUTING) not in {
        shard_id(T, text, FIRST_ROUTING, pa.utf8()) for text in ("", "null", "None")
    }


def test_later_routings_share_no_shard_with_the_first():
    made = {shard_id(Bucket("id", 2), value, n) for value in (0, 1) for n in range(4)}
    assert len(made) == 8


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (value_of_app("spark"), "e630f9f3-3ea7-509b-a73b-72c0c39896f7"),
        (value_of_writer(UUID(int=7 << 80)), "6e1e0ba0-e6b3-5b08-94e6-d2db89456562"),
    ],
)
def test_c18_a_shard_of_a_writer_or_an_application_is_found_by_its_name(value, expected):
    """Stored: another id would apply the batches of an application again (P-2)."""
    for sharding in (PerWriter(), PerWriter(silent_after=5)):
        assert shard_id(sharding, value, FIRST_ROUTING) == UUID(expected)
        entries = field_entries(sharding, value, None)
        assert value_from_entries(sharding, entries, None) == value


def test_c18_an_application_has_no_writers_shard_whatever_its_name():
    name = value_of_writer(UUID(int=7 << 80))
    assert is_of_writer(PerWriter(), name)
    assert not is_of_writer(PerWriter(), value_of_app(name))
    assert not is_of_writer(PerWriter(), None)
    assert not is_of_writer(Identity("t"), name)  # a value of that column


@pytest.mark.parametrize(("sharding", "dtype"), [(Bucket("id", 2), None), (T, pa.int32())])
def test_a_number_that_no_column_holds_is_no_value(sharding, dtype):
    """Whoever asked for the id of its shard got a plain ValueError or OverflowError."""
    value = value_from_entries(sharding, (("bucket", b"\x01" * 5000),), dtype)
    assert value is None
    shard_id(sharding, value, FIRST_ROUTING, dtype)

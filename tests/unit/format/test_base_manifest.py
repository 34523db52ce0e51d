"""The base manifest: MemWAL details of the format sheet, bounds, damage. Interop has real files."""

import contextlib
import struct
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import CorruptEntry
from weir.format.base_manifest import (
    ShardingField,
    ShardingSpec,
    encode_mem_wal_details,
    parse_mem_wal_details,
    read_mem_wal,
)

SHARD = UUID("00112233-4455-6677-8899-aabbccddeeff")


def details(hex_bytes):
    return parse_mem_wal_details(bytes.fromhex(hex_bytes), path="m")


def test_details_initialised_with_nothing():
    got = details("6001")
    assert got.maintain_all
    assert got.num_shards == 0
    assert got.compacted == {}
    assert got.sharding_specs == ()


def test_details_with_no_maintained_indexes():
    got = details("6000")
    assert not got.maintain_all
    assert got.maintained_indexes == ()


def test_details_with_an_identity_column():
    got = details("3a1f0801121b0a066275636b65741201011a086964656e746974792a04757466386001")
    (spec,) = got.sharding_specs
    (field,) = spec.fields
    assert spec.spec_id == 1
    assert (field.field_id, field.source_ids, field.transform) == ("bucket", (1,), "identity")
    assert (field.expression, field.result_type, field.parameters) == (None, "utf8", {})


def test_details_with_progress():
    got = details("4a160a120a1000112233445566778899aabbccddeeff1001 6001")
    assert got.compacted == {SHARD: 1}


def test_progress_listed_twice_counts_by_the_higher_generation():
    entry = "4a160a120a1000112233445566778899aabbccddeeff10"
    assert details(f"{entry}05{entry}03").compacted == {SHARD: 5}


@pytest.mark.parametrize("hex_bytes", ["4a0210", "4a021001", "4a070a050a0300112260", "3aff"])
def test_damaged_details_are_corrupt_entry(hex_bytes):
    with pytest.raises(CorruptEntry, match=r"m is not .* MemWAL index entry is damaged"):
        details(hex_bytes)


@pytest.mark.parametrize("parameters", [{}, {"num_buckets": "many"}, {"num_buckets": "9" * 5000}])
def test_a_sharding_by_bucket_without_a_number_of_buckets_is_damage(parameters):
    """Whoever asked for the sharding got a plain KeyError or ValueError."""
    by_bucket = ShardingField("bucket", (0,), "bucket", None, "int32", parameters)
    specs = (ShardingSpec(1, (by_bucket,)),)
    raw = encode_mem_wal_details(replace(details("6001"), sharding_specs=specs))
    with pytest.raises(CorruptEntry, match=r"m is not .* sharding by bucket"):
        parse_mem_wal_details(raw, path="m")


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def lance_file(*, version=3, index_details=None, index_offset=None, offset=None, more=b""):
    before = b""
    manifest = b"\x18" + varint(version) + more
    if index_details is not None:
        value = b"\x12" + varint(len(index_details)) + index_details
        index = b"\x1a\x0f__lance_mem_wal" + b"\x32" + varint(len(value)) + value
        section = b"\x0a" + varint(len(index)) + index
        before = struct.pack("<I", len(section)) + section
        at = 0 if index_offset is None else index_offset
        manifest += b"\x30" + varint(at)
    body = struct.pack("<I", len(manifest)) + manifest
    at = len(before) if offset is None else offset
    return before + body + struct.pack("<QHH", at, 0, 2) + b"LANC"


def test_a_manifest_with_and_without_mem_wal():
    assert read_mem_wal(lance_file(), path="m") is None
    got = read_mem_wal(lance_file(index_details=b"\x60\x01"), path="m")
    assert got is not None
    assert got.maintain_all


def test_the_version_must_be_that_of_the_name():
    raw = lance_file(version=3)
    read_mem_wal(raw, path=f"_versions/{2**64 - 1 - 3:020d}.manifest")
    read_mem_wal(raw, path="_versions/3.manifest")
    with pytest.raises(CorruptEntry, match="version 3"):
        read_mem_wal(raw, path="_versions/4.manifest")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"LANC",
        lance_file()[:-1],
        lance_file(version=0),
        lance_file(offset=2**63),
        lance_file(offset=15),
        lance_file(index_details=b"\x60\x01", index_offset=2**40),
        lance_file(index_details=b"\x60\x01", index_offset=5),
        lance_file(index_details=b"\x4a\x02\x10\x01"),
    ],
)
def test_damage_is_corrupt_entry_naming_the_object(raw):
    with pytest.raises(CorruptEntry, match=r"some/1\.x"):
        read_mem_wal(raw, path="some/1.x")


@given(st.data())
def test_mutated_manifests_never_raise_anything_else(data):
    progress = bytes.fromhex("4a160a120a1000112233445566778899aabbccddeeff10016001")
    raw = bytearray(lance_file(index_details=progress))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptEntry):
        read_mem_wal(bytes(raw), path="m")

"""The shard manifest: byte vectors of the format sheet, round trips, damage."""

import contextlib
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import CorruptEntry
from weir.format import paths
from weir.format.manifest import (
    MANIFEST_BYTES_MAX,
    ShardManifest,
    SsTable,
    Status,
    decode_hint,
    decode_manifest,
    encode_hint,
    encode_manifest,
)

SHARD = UUID("00112233-4455-6677-8899-aabbccddeeff")
SHARD_HEX = "5a120a1000112233445566778899aabbccddeeff"
FIRST = ShardManifest(1, 1, 0, 0, 1, (), 0, SHARD, (), Status.ACTIVE)
FLUSHED = ShardManifest(
    2, 1, 3, 3, 2, (SsTable(1, "19409f67_gen_1", 233, 5, 40),), 0, SHARD, (), Status.ACTIVE
)
FIRST_HEX = f"0801 1001 3001 {SHARD_HEX}"
FLUSHED_HEX = (
    "0802 1001 1803 2003 3002 4219 0801 120e31393430396636375f67656e5f31 18e901 2005 2828"
    f" {SHARD_HEX}"
)
ENTRIES_TAIL_HEX = f"5001 {SHARD_HEX} 720e 0a066275636b6574 120402000000"

U64 = st.integers(0, 2**64 - 1)
SIZES = st.none() | U64


@st.composite
def manifests(draw):
    current = draw(st.integers(1, 2**64 - 1))
    generations = draw(
        st.lists(st.integers(1, current - 1), max_size=4, unique=True)
        if current > 1
        else st.just([])
    )
    covered, seen = sorted((draw(U64), draw(U64)))
    return ShardManifest(
        version=draw(st.integers(1, 2**64 - 1)),
        writer_epoch=draw(U64),
        replay_after=covered,
        last_seen=seen,
        current_generation=current,
        sstables=tuple(
            SsTable(g, f"0123abcd_gen_{g}", draw(SIZES), draw(SIZES), draw(SIZES))
            for g in sorted(generations)
        ),
        shard_spec_id=draw(st.integers(0, 2**32 - 1)),
        shard_id=draw(st.uuids()),
        field_entries=tuple(draw(st.lists(st.tuples(st.text(), st.binary()), max_size=3))),
        status=draw(st.sampled_from(Status)),
        commit_id=draw(st.sampled_from([b"", bytes(range(16))])),
        closed_epoch=draw(U64),
        wal_only=draw(st.booleans()),
        dropped=draw(st.booleans()),
    )


@pytest.mark.parametrize(("manifest", "hex_bytes"), [(FIRST, FIRST_HEX), (FLUSHED, FLUSHED_HEX)])
def test_byte_vectors_of_the_format_sheet(manifest, hex_bytes):
    data = bytes.fromhex(hex_bytes)
    assert encode_manifest(manifest) == data
    assert decode_manifest(data, path=paths.manifest_path(SHARD, manifest.version)) == manifest


def test_field_entries_have_the_bytes_of_the_format_sheet():
    manifest = replace(FIRST, shard_spec_id=1, field_entries=(("bucket", b"\x02\0\0\0"),))
    data = encode_manifest(manifest)
    assert data.endswith(bytes.fromhex(ENTRIES_TAIL_HEX))
    assert decode_manifest(data, path="m") == manifest


@given(manifests())
def test_any_manifest_round_trips(manifest):
    path = paths.manifest_path(manifest.shard_id, manifest.version)
    assert decode_manifest(encode_manifest(manifest), path=path) == manifest


def test_f3_what_is_covered_was_seen_whatever_a_foreign_manifest_says():
    odd = replace(FIRST, replay_after=7, last_seen=3)
    assert decode_manifest(encode_manifest(odd), path="m").last_seen == 7


def test_f9_two_claimants_write_different_bytes():
    ours = replace(FIRST, commit_id=b"a" * 16)
    theirs = replace(FIRST, commit_id=b"b" * 16)
    assert encode_manifest(ours) != encode_manifest(theirs)
    assert encode_manifest(ours).startswith(encode_manifest(FIRST))


def test_fields_that_lance_retired_are_passed_over():
    data = bytes.fromhex(FIRST_HEX) + bytes.fromhex("2a0161")
    assert decode_manifest(data, path="m") == FIRST


def test_any_order_of_fields_is_read():
    data = bytes.fromhex(f"{SHARD_HEX} 3001 1001 0801")
    assert decode_manifest(data, path="m") == FIRST


def _bad_tables(*tables, current=3):
    return encode_manifest(replace(FIRST, current_generation=current, sstables=tables))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "shard manifest"),
        (b"\xff" * 20, "shard manifest"),
        (bytes.fromhex(FIRST_HEX)[:-1], "shard manifest"),
        (bytes.fromhex(FIRST_HEX)[:6], "shard manifest"),
        (bytes.fromhex(f"1001 3001 {SHARD_HEX}"), "no version"),
        (bytes.fromhex(f"0801 1001 {SHARD_HEX}"), "no current generation"),
        (bytes.fromhex("0801 1001 3001 5a050a03001122"), "16"),
        (bytes.fromhex(FIRST_HEX + "7807"), "Status"),
        (_bad_tables(SsTable(1, "a"), SsTable(1, "b")), "listed twice"),
        (_bad_tables(SsTable(3, "a")), "below the current"),
        (_bad_tables(SsTable(0, "a")), "at least 1"),
        (_bad_tables(SsTable(1, "")), "folder name"),
        (_bad_tables(SsTable(1, "..")), "folder name"),
        (_bad_tables(SsTable(1, "../../other")), "folder name"),
        (_bad_tables(SsTable(1, "a\\b")), "folder name"),
        (_bad_tables(SsTable(1, "a\0b")), "folder name"),
        (bytes.fromhex(f"0801 1001 3003 4205 0801 1201ff {SHARD_HEX}"), "shard manifest"),
        (b"\0" * (MANIFEST_BYTES_MAX + 1), "larger"),
    ],
)
def test_damage_is_corrupt_entry_naming_the_object(data, reason):
    with pytest.raises(CorruptEntry, match=reason) as caught:
        decode_manifest(data, path="some/where.binpb")
    assert "some/where.binpb" in str(caught.value)


def test_a_manifest_under_another_name_is_refused():
    data = encode_manifest(FIRST)
    with pytest.raises(CorruptEntry, match="its name says 2"):
        decode_manifest(data, path=paths.manifest_path(SHARD, 2))
    with pytest.raises(CorruptEntry, match="belongs to shard"):
        decode_manifest(data, path=paths.manifest_path(UUID(int=9), 1))


@given(st.binary(max_size=200))
def test_random_bytes_never_raise_anything_else(data):
    with contextlib.suppress(CorruptEntry):
        decode_manifest(data, path="m")


@given(st.data())
def test_mutated_manifests_never_raise_anything_else(data):
    raw = bytearray(encode_manifest(replace(FLUSHED, commit_id=bytes(16))))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptEntry):
        decode_manifest(bytes(raw), path="m")


def test_the_hint_has_the_documented_bytes():
    assert encode_hint(2) == b'{"version":2}'


@given(st.integers(1, 2**64 - 1))
def test_hints_round_trip(version):
    assert decode_hint(encode_hint(version)) == version


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"2",
        b"{}",
        b'{"version":"2"}',
        b'{"version":true}',
        b'{"version":0}',
        b'{"version":-1}',
        b'{"version":2.5}',
        b'{"version":18446744073709551616}',
        b"[" * 1000,
        b'{"version":2}' + b" " * 2000,
    ],
)
def test_a_bad_hint_is_no_hint(data):
    assert decode_hint(data) is None

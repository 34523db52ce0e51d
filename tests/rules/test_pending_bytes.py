"""Unknown flags and fields: a later format is an error that names what is new, never a guess."""

from uuid import UUID

import pytest

from tests.unit.format.test_base_manifest import lance_file, varint
from weir.errors import CorruptEntry
from weir.format.base_manifest import parse_mem_wal_details, read_mem_wal
from weir.format.manifest import decode_manifest

SHARD = "5a120a1000112233445566778899aabbccddeeff"


def with_flags(number: int, flags: int) -> bytes:
    """A base manifest with field `number` (9: readers, 10: writers) set."""
    tag = varint(number << 3) + varint(flags)
    return lance_file(more=tag)


@pytest.mark.parametrize(("number", "kind"), [(9, "reader"), (10, "writer")])
@pytest.mark.parametrize("flag", [64, 128, 1 << 9, 1 << 40])
def test_x9_an_unknown_feature_flag_is_named(number, kind, flag):
    """1 << 9 is planned for stable field ids (lance#8658)."""
    with pytest.raises(CorruptEntry, match=rf"unknown {kind} feature flag {flag}: .*upgrade weir$"):
        read_mem_wal(with_flags(number, 1 | flag), path="m")


def test_x9_known_flags_are_taken():
    assert read_mem_wal(with_flags(9, 0b111111), path="m") is None


def test_x9_an_unknown_field_of_a_shard_manifest_is_named():
    good = bytes.fromhex(f"080110013001{SHARD}")
    assert decode_manifest(good, path="m").shard_id == UUID("00112233-4455-6677-8899-aabbccddeeff")
    with pytest.raises(CorruptEntry, match=r"unknown field 16: a later version .* upgrade weir$"):
        decode_manifest(good + bytes.fromhex("800101"), path="m")


def test_x9_an_sstable_with_a_state_that_we_do_not_know_is_named():
    """lance#9035 may add such a state for an SSTable whose key file is not complete yet."""
    table = bytes.fromhex("0801120e31393430396636375f67656e5f31")
    for extra in (b"", b"\x30\x01"):
        raw = bytes.fromhex("08021001180320033002")
        raw += b"\x42" + bytes([len(table + extra)]) + table + extra + bytes.fromhex(SHARD)
        if not extra:
            assert len(decode_manifest(raw, path="m").sstables) == 1
            continue
        with pytest.raises(CorruptEntry, match="SSTable 19409f67_gen_1 has the unknown field 6"):
            decode_manifest(raw, path="m")


@pytest.mark.parametrize(
    ("extra", "match"),
    [
        ("6801", "index entry has the unknown field 13.*upgrade weir$"),
        ("3a04080138011a", "damaged|unknown"),
    ],
)
def test_x9_an_unknown_field_of_the_mem_wal_entry_is_named(extra, match):
    with pytest.raises(CorruptEntry, match=match):
        parse_mem_wal_details(bytes.fromhex("6001" + extra), path="m")


def test_x9_snapshots_inside_the_entry_are_known_and_not_needed():
    assert parse_mem_wal_details(bytes.fromhex("08051a01006001"), path="m").maintain_all

"""Names: each is built and parsed back; foreign names are refused."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import InvalidInput
from weir.format import lance_file, paths

U64 = st.integers(0, 2**64 - 1)
FROM_ONE = st.integers(1, 2**64 - 1)
SHARD = UUID("00112233-4455-6677-8899-aabbccddeeff")


@pytest.mark.parametrize(
    ("n", "first"),
    [(1, "1000"), (2, "0100"), (3, "1100"), (4, "0010"), (5, "1010"), (6, "0110")],
)
def test_bit_reversed_names_of_the_format_sheet(n, first):
    assert paths.bit_reversed(n) == first.ljust(64, "0")


@given(U64)
def test_bit_reversed_names_round_trip(n):
    name = paths.bit_reversed(n)
    assert len(name) == 64
    assert paths.parse_bit_reversed(name) == n


@given(st.text())
def test_parsers_answer_none_for_any_other_text(text):
    for parse in (
        paths.parse_bit_reversed,
        paths.parse_manifest_name,
        paths.parse_wal_name,
        paths.parse_chain_name,
        paths.parse_mark_name,
        paths.parse_sstable_name,
        lance_file.parse_version_name,
    ):
        assert parse(text) is None or text.isascii()


@pytest.mark.parametrize(
    "name", ["", "1" * 63, "1" * 65, "2" + "0" * 63, "\u0661" * 64, "0" * 64 + "\n", " " + "1" * 63]
)
def test_near_misses_of_bit_reversed_names_are_refused(name):
    assert paths.parse_bit_reversed(name) is None
    assert paths.parse_wal_name(f"{name}.arrow") is None
    assert paths.parse_manifest_name(f"{name}.binpb") is None


def test_position_and_version_zero_are_never_files():
    assert paths.parse_wal_name("0" * 64 + ".arrow") is None
    assert paths.parse_manifest_name("0" * 64 + ".binpb") is None
    assert paths.parse_manifest_name("version_hint.json") is None


@pytest.mark.parametrize("n", [-1, 2**64])
def test_numbers_outside_64_bits_have_no_name(n):
    for build in (
        lambda: paths.bit_reversed(n),
        lambda: paths.chain_path("d", n),
        lambda: paths.mark_path("d", n),
    ):
        with pytest.raises(InvalidInput, match="64 bits"):
            build()


@given(FROM_ONE)
def test_manifest_and_wal_paths_round_trip(n):
    folder, _, name = paths.manifest_path(SHARD, n).rpartition("/")
    assert folder == paths.manifest_dir(SHARD) == f"_mem_wal/{SHARD}/manifest"
    assert paths.parse_manifest_name(name) == n
    assert paths.parse_wal_name(name) is None
    folder, _, name = paths.wal_path(SHARD, n).rpartition("/")
    assert folder == paths.wal_dir(SHARD) == f"_mem_wal/{SHARD}/wal"
    assert paths.parse_wal_name(name) == n
    assert paths.parse_manifest_name(name) is None


@given(FROM_ONE, st.binary(min_size=4, max_size=4))
def test_sstable_names_round_trip(generation, tag):
    name = paths.sstable_name(generation, tag.hex())
    assert paths.parse_sstable_name(name) == (tag.hex(), generation)
    assert paths.sstable_dir(SHARD, name) == f"_mem_wal/{SHARD}/{name}"


@pytest.mark.parametrize(
    "name",
    [
        "19409f67_gen_0",
        "19409f67_gen_01",
        "19409f67_gen_",
        "19409F67_gen_1",
        "9409f67_gen_1",
        "19409f67_gen_1/..",
        "19409f67_gen_99999999999999999999",
        "wal",
        "manifest",
    ],
)
def test_names_that_are_no_sstable(name):
    assert paths.parse_sstable_name(name) is None


@pytest.mark.parametrize(("generation", "tag"), [(0, "19409f67"), (1, "../../ab"), (1, "ABCDEF01")])
def test_sstable_name_refuses_what_it_could_not_parse(generation, tag):
    with pytest.raises(InvalidInput):
        paths.sstable_name(generation, tag)


@given(st.uuids())
def test_shard_ids_round_trip(shard):
    assert paths.parse_shard_id(str(shard)) == shard
    assert paths.shard_dir(shard) == f"{paths.SHARDS}/{shard}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "../x",
        "..",
        "shard-1",
        "00112233-4455-6677-8899-AABBCCDDEEFF",
        "00112233445566778899aabbccddeeff",
        "{00112233-4455-6677-8899-aabbccddeeff}",
        "urn:uuid:00112233-4455-6677-8899-aabbccddeeff",
        "00112233-4455-6677-8899-aabbccddeeff/../x",
        "00112233-4455-6677-8899-aabbccddeeff\n",
        None,
        7,
    ],
)
def test_a_shard_id_that_is_no_canonical_uuid_is_refused(text):
    with pytest.raises(InvalidInput, match="is not a UUID"):
        paths.parse_shard_id(text)


@given(U64)
def test_chain_and_marker_names_round_trip(n):
    assert paths.parse_chain_name(paths.chain_path("_weir/x", n).rpartition("/")[2]) == n
    assert paths.parse_mark_name(paths.mark_path("_weir/x", n).rpartition("/")[2]) == n


@given(st.lists(U64, min_size=2, unique=True))
def test_listing_order_is_ascending_for_chains_and_descending_for_markers(numbers):
    chain = sorted(paths.chain_path("d", n) for n in numbers)
    assert chain == [paths.chain_path("d", n) for n in sorted(numbers)]
    first = min(paths.mark_path("d", n) for n in numbers)
    assert first == paths.mark_path("d", max(numbers))


@pytest.mark.parametrize(
    "name", ["99999999999999999999", "1", "0" * 21, "-" + "0" * 19, "\u0660" * 20]
)
def test_digits_beyond_64_bits_or_of_another_length_are_refused(name):
    assert paths.parse_mark_name(name) is None
    assert paths.parse_chain_name(f"{name}.json") is None


def test_names_of_weirs_own_records():
    shard = str(SHARD)
    assert paths.table_chain() == "_weir/table"
    assert paths.checkpoint_chain(SHARD) == f"_weir/checkpoints/{shard}"
    assert paths.CHECKPOINTS == "_weir/checkpoints"
    assert paths.consumer_chain("etl.daily-1") == "_weir/consumers/etl.daily-1"
    assert paths.compaction_chain() == "_weir/compaction"
    assert paths.clone_chain() == "_weir/clone"
    assert paths.reshard_chain() == "_weir/reshard"
    assert paths.places_chain(SHARD) == f"_weir/shards/{shard}/places"
    assert paths.is_log_folder(paths.log_folder(SHARD, SHARD))
    assert not paths.is_log_folder(shard)
    assert paths.floor_dir(SHARD, "wal") == f"_weir/shards/{shard}/floor/wal"
    assert paths.floor_dir(SHARD, "manifest") == f"_weir/shards/{shard}/floor/manifest"
    assert paths.manifest_hint_path(SHARD) == f"_mem_wal/{shard}/manifest/version_hint.json"
    assert paths.chain_path("_weir/table", 7) == "_weir/table/00000000000000000007.json"
    assert paths.mark_path("f", 0) == "f/18446744073709551615"


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a\\b", "a b", "ü", "x" * 129, "a\n"])
def test_a_consumer_name_cannot_leave_its_folder(name):
    with pytest.raises(InvalidInput, match="consumer name"):
        paths.consumer_chain(name)


@given(st.text())
def test_any_application_name_gives_a_safe_token_folder(app):
    folder, _, name = paths.token_dir(SHARD, app).rpartition("/")
    assert folder == f"_weir/shards/{SHARD}/tokens"
    assert len(name) == 32
    assert set(name) <= set("0123456789abcdef")


@given(FROM_ONE.filter(lambda v: v < 10**18))
def test_base_version_names_round_trip_in_both_styles(version):
    assert lance_file.parse_version_name(lance_file.version_name(version)) == version
    assert lance_file.parse_version_name(f"{version}.manifest") == version


@pytest.mark.parametrize(
    "name",
    [
        "d123.manifest",
        "1.manifest.tmp",
        "1",
        ".manifest",
        "-1.manifest",
        "0.manifest",
        "²³.manifest",
    ],
)
def test_other_files_beside_base_versions_are_passed_over(name):
    assert lance_file.parse_version_name(name) is None


def test_version_one_of_a_base_table_has_the_documented_name():
    assert lance_file.version_name(1) == "18446744073709551614.manifest"

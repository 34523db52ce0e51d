"""Damaged bytes give a documented error or decode as they are, never a crash or foreign rows (I).

Real objects of a real history are truncated, flipped, swapped and extended, then given to every
decoder.
"""

import contextlib
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.one_shard import open_writer, site_on
from weir.config import WriterConfig
from weir.errors import CorruptEntry, InvalidInput
from weir.format import paths
from weir.format.base_manifest import read_mem_wal
from weir.format.manifest import decode_hint, decode_manifest
from weir.format.wal_entry import decode_entry
from weir.format.wal_header import read_header
from weir.log.manifests import Manifests
from weir.read.changes import Bookmark
from weir.read.snapshot import Snapshot
from weir.records import codec
from weir.records.lineage import Lineage
from weir.store.memory import MemoryStore

QUICK = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)


def objects() -> dict[str, bytes]:
    """One object of each kind, as the product writes them."""
    store = MemoryStore()
    site = site_on(store)
    writer = open_writer(site, WriterConfig(max_memtable_rows=3))
    for key in range(6):
        writer.put([{"k": key, "v": key}])
    writer.put_once([{"k": 9, "v": 9}], app="stream", version=1)
    writer.close()
    found = {}
    for meta in store.list(""):
        data = store.get(meta.path).data
        if "/wal/" in meta.path:
            found["entry" if len(data) > 600 else "fence"] = data
        elif meta.path.endswith(".binpb"):
            found["manifest"] = data
        elif meta.path.endswith("version_hint.json"):
            found["hint"] = data
    cut = {
        "shard": str(site.shard),
        "manifest_version": 3,
        "epoch": 1,
        "replay_after": 2,
        "wal_through": 9,
        "current_generation": 4,
        "shard_spec_id": 1,
        "sealed": False,
        "field_entries": [],
        "sstables": [[3, "0123abcd_gen_3", None, None, None]],
    }
    snapshot = {"base_version": 4, "freshness": "durable", "cuts": [cut], "at": 1.5}
    found["snapshot"] = json.dumps(snapshot).encode()
    found["bookmark"] = json.dumps({"positions": {str(site.shard): 7}}).encode()
    found["record"] = codec.dumps(Lineage("copying", "/t", site.shard))
    return found


OBJECTS = objects()


@st.composite
def damaged(draw, kind):
    """An object of that kind, damaged in one to three places."""
    data = bytearray(OBJECTS[kind])
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["flip", "cut", "zero", "insert", "repeat", "other"])):
            case "flip" if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at:]
            case "zero" if data:
                data[at : at + 8] = bytes(len(data[at : at + 8]))
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=9))
            case "repeat":
                data += data[at:]
            case "other":
                data = bytearray(OBJECTS[draw(st.sampled_from(sorted(OBJECTS)))])
    return bytes(data)


DECODERS = {
    "entry": lambda data: decode_entry(data, position=2, path="x"),
    "fence": lambda data: decode_entry(data, position=2, path="x"),
    "manifest": lambda data: decode_manifest(data, path="x"),
    "hint": decode_hint,
    "snapshot": lambda data: Snapshot.from_json(data.decode("utf-8", "replace")),
    "bookmark": lambda data: Bookmark.from_json(data.decode("utf-8", "replace")),
    "record": lambda data: codec.loads(data, Lineage, "x"),
}


@pytest.mark.parametrize("kind", sorted(DECODERS))
def test_i_damaged_bytes_give_a_documented_error(kind):
    decode = DECODERS[kind]
    decode(OBJECTS[kind])  # undamaged, it decodes

    @QUICK
    @given(damaged(kind))
    def check(data):
        with contextlib.suppress(CorruptEntry, InvalidInput):
            decode(data)

    check()


@pytest.mark.parametrize("kind", ["entry", "fence", "manifest"])
def test_i_every_cut_of_an_object_is_refused_or_whole(kind):
    data = OBJECTS[kind]
    whole = DECODERS[kind](data)
    for size in range(len(data)):
        try:
            part = DECODERS[kind](data[:size])
        except CorruptEntry:
            continue
        if kind == "entry":  # a missing end marker is accepted, missing rows are not
            assert part.num_rows == whole.num_rows
        elif kind == "manifest":
            assert part.version >= 0


@QUICK
@given(st.binary(max_size=400))
def test_i_no_bytes_crash_the_other_readers(data):
    with contextlib.suppress(ValueError):
        read_header(data)
    with pytest.raises(CorruptEntry):
        read_mem_wal(b"junk" + data, path="x")


@QUICK
@given(damaged("manifest"))
def test_i_a_damaged_manifest_stops_readers_and_openers(data):
    store = MemoryStore()
    site = site_on(store)
    open_writer(site).close()
    latest = Manifests(site).require()
    store.put(paths.manifest_path(site.shard, latest.version), data)
    with contextlib.suppress(CorruptEntry):
        assert Manifests(site).require().shard_id == latest.shard_id

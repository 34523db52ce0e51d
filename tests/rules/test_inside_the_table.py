"""G-13: no link and no record leads collection, or any other clean-up, out of the table."""

import contextlib
import dataclasses
import datetime as dt
import http.server
import json
import os
import shutil
import threading
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from msgspec import structs

import weir
from simulator.steps import Died, dies_at, watched
from tests.support.moments import again, expect, log_place, make, put, rows
from weir.errors import CorruptEntry, InvalidInput, MissingEntry, StoreDenied, WalStoreMismatch
from weir.format import paths
from weir.format.manifest import decode_manifest, encode_manifest
from weir.lake.manifest.clone import clone_manifest
from weir.records import codec
from weir.records.holds import Holds
from weir.records.lineage import ParentPin, append_lineage, read_lineage
from weir.store.consent import Consent
from weir.store.local import LocalStore
from weir.store.open import open_store
from weir.upkeep import checkpoint as checkpoints
from weir.upkeep import clone as clones
from weir.upkeep import parents
from weir.upkeep.gc.collect import collect

A, B = range(10), range(5, 20)
OLD = 30 * 86_400


def sweep(table, **how):
    """A collection that deletes everything it may."""
    return collect(table.core, 0, 120, keep_first_entries=False, **how)


def files(place):
    """Every file below `place`, with its bytes; links are not followed."""
    found = {}
    for folder, _, names in os.walk(place):
        for name in names:
            path = Path(folder, name)
            if not path.is_symlink():
                found[str(path.relative_to(place))] = path.read_bytes()
    return found


def age(place):
    """Make everything below `place` a month old."""
    for folder, _, names in os.walk(place):
        for name in names:
            path = Path(folder, name)
            then = path.stat().st_mtime - OLD
            os.utime(path, (then, then))


def stranger(place, *names):
    """Make a folder outside the table, with old files of the given names in it."""
    for name in names:
        path = Path(place, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"precious " + name.encode())
    age(place)
    return files(place)


def used(place, shards=1):
    """A table with rows in the base, in SSTables and in the log, and garbage of every kind."""
    table = make(place, shards)
    with table.writer() as writer:
        put(writer, A, "a")
        writer.flush()
        table.compact()
        put(writer, A, "a2")
        writer.flush()
        put(writer, B, "b")
    return table


def shard_folder(table):
    return Path(table.uri, paths.shard_dir(table.shards()[0].id))


WAL = f"{paths.bit_reversed(1)}.arrow"


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("_mem_wal/{shard}/0badc0de_gen_1", ["data/0.lance", "weir_claim"]),
        ("_weir/staging", ["job/0.arrow", "thesis.txt"]),
        ("_weir/staging/x", ["deep/thesis.txt"]),
        ("_weir/jobs/x", ["thesis.txt"]),
        ("_weir/clock", ["thesis.txt"]),
        ("_weir/checkpoints/{shard}", ["00000000000000000002.json"]),
    ],
)
def test_g13_a_linked_folder_is_not_emptied(tmp_path, where, names):
    table = used(tmp_path / "t")
    link = Path(table.uri, where.format(shard=table.shards()[0].id))
    outside = tmp_path / "outside"
    before = stranger(outside, *names)
    if "checkpoints" in where:
        (outside / names[0]).write_bytes(b'{"deleted":true}')
        age(outside)
        before = files(outside)
    shutil.rmtree(link, ignore_errors=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside)
    report = sweep(table)
    assert files(outside) == before
    assert link.is_symlink()
    assert any(str(link) in error and "link" in error for error in report.errors), report.errors
    # Only files behind the link are left alone; reads and writes are not disturbed.
    assert rows(again(table)) == expect((A, "a2"), (B, "b"))
    with again(table).writer() as writer:
        put(writer, [77], "c")


@pytest.mark.parametrize("where", ["_mem_wal", "shard", "wal", "manifest"])
def test_g13_a_shard_behind_a_link_is_another_table_s(tmp_path, where):
    """Both have the same shard ids: a clean-up could mistake the other's entries for its own."""
    table, other = used(tmp_path / "t"), used(tmp_path / "o")
    mine, theirs = shard_folder(table), shard_folder(other)
    assert mine.name == theirs.name
    if where == "_mem_wal":
        mine, theirs = mine.parent, theirs.parent
    elif where != "shard":
        mine, theirs = mine / where, theirs / where
    before = files(tmp_path / "o")
    shutil.rmtree(mine)
    mine.symlink_to(theirs)

    def work():
        handle = again(table)
        sweep(handle)
        with handle.writer() as writer:
            put(writer, [500], "stray")
            writer.flush()

    with pytest.raises(StoreDenied, match="link") as caught:
        work()
    assert str(mine) in str(caught.value)
    assert files(tmp_path / "o") == before
    assert rows(again(other)) == expect((A, "a2"), (B, "b"))


def test_g13_a_link_between_two_shards_of_one_table_is_refused_too(tmp_path):
    table = used(tmp_path / "t", shards=2)
    one, two = (Path(table.uri, paths.shard_dir(s.id)) for s in table.shards())
    for _ in range(2):
        sweep(table)
    shutil.rmtree(one)
    one.symlink_to(two)
    before = files(two)
    (error,) = sweep(table, kinds=["wal", "manifests", "sstables"]).errors
    assert "StoreDenied" in error
    assert str(one) in error
    assert "symbolic link" in error
    assert files(two) == before


@pytest.mark.parametrize(
    "folder", ["data", "database", "_deletions", "_indices", "_transactions", "_versions"]
)
def test_g13_lance_is_not_sent_to_clean_up_behind_a_link(tmp_path, folder):
    """Lance follows links, and deletes another dataset's files, which ours does not name."""
    table, other = used(tmp_path / "t"), used(tmp_path / "o")
    table.compact()
    other.compact()
    mine, theirs = Path(table.uri, folder), Path(other.uri, folder)
    theirs.mkdir(exist_ok=True)
    if folder == "_indices":
        stranger(theirs / str(uuid4()), "index.idx")
    age(theirs)
    before = files(theirs)
    if folder == "_versions":
        mine /= "sub"
    else:
        shutil.rmtree(mine, ignore_errors=True)
    mine.symlink_to(theirs)
    report = sweep(table, kinds=["base"])
    assert files(theirs) == before
    assert any(str(mine) in error for error in report.errors), report.errors
    assert rows(again(other)) == expect((A, "a2"), (B, "b"))


def logged(place, text="a"):
    """A table whose rows are in the log only."""
    table = make(place, 1, writer_defaults=weir.WriterConfig(enable_memtable=False))
    with table.writer() as writer:
        put(writer, A, text)
    return table


def largest(table, pattern):
    return max(Path(table.uri).glob(pattern), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize(
    "pattern",
    ["_mem_wal/*/wal/*.arrow", "_mem_wal/*/manifest/*.binpb", "_weir/table/*.json"],
)
def test_g13_no_object_is_read_through_a_link(tmp_path, pattern):
    table, other = logged(tmp_path / "t"), logged(tmp_path / "o", "secret")
    link = largest(table, pattern)
    link.unlink()
    link.symlink_to(largest(other, pattern))
    before = files(other.uri)
    for verb in (rows, lambda handle: handle.compact(fold_wal=True)):
        with pytest.raises(StoreDenied, match="symbolic link") as caught:
            verb(again(table))
        assert str(link) in str(caught.value)
    assert files(other.uri) == before


def test_g13_no_object_is_read_in_a_linked_folder(tmp_path):
    store = LocalStore(str(tmp_path / "root"))
    store.put_if_absent("mine/x", b"1")
    stranger(tmp_path / "outside", "x")
    (tmp_path / "root" / "wal").symlink_to(tmp_path / "outside")
    reads = [
        store.get,
        lambda path: store.get_range(path, 0, 1),
        lambda path: store.get_many([path]),
    ]
    for read in reads:
        with pytest.raises(StoreDenied, match="symbolic link"):
            read("wal/x")


@pytest.mark.parametrize(
    "pattern", ["_mem_wal/*/wal/*.arrow", "_weir/table/*.json", "data/*.lance"]
)
def test_g13_a_pipe_in_place_of_an_object_blocks_nobody(tmp_path, pattern):
    table = used(tmp_path / "t") if "lance" in pattern else logged(tmp_path / "t")
    path = largest(table, pattern)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StoreDenied, match="a pipe") as caught:
        rows(again(table))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "pattern",
    ["_mem_wal/*/wal/*.arrow", "_mem_wal/*/manifest/*.binpb", "_weir/table/*.json"],
)
def test_l10_a_file_of_a_terabyte_is_refused_before_it_is_read(tmp_path, pattern):
    """A file with a hole takes no room on the disk, and all memory when it is read."""
    table = logged(tmp_path / "t")
    for path in Path(table.uri).glob(pattern):
        os.truncate(path, 1 << 40)
    with pytest.raises(CorruptEntry, match="1,099,511,627,776 bytes"):
        rows(again(table))


@pytest.mark.parametrize("linked", [["data"], ["data", "_versions"], ["_deletions"], ["_indices"]])
def test_g13_lance_neither_reads_nor_writes_behind_a_link(tmp_path, linked):
    table, other = used(tmp_path / "t"), used(tmp_path / "o")
    table.compact()
    other.compact()
    with table.writer() as writer:
        put(writer, [77], "stranger")
    for folder in linked:
        link = Path(table.uri, folder)
        shutil.rmtree(link, ignore_errors=True)
        target = Path(other.uri, folder)
        target.mkdir(exist_ok=True)
        link.symlink_to(target)
    before = files(tmp_path / "o")
    operator = again(table)
    with pytest.raises(StoreDenied, match="symbolic link"):
        operator.scan().to_table()
    with pytest.raises(StoreDenied, match="symbolic link"):
        operator.compact(fold_wal=True)
    with pytest.raises(StoreDenied, match="symbolic link"):
        table.compact(fold_wal=True)  # a handle from before the link
    assert files(tmp_path / "o") == before


@pytest.mark.parametrize("pattern", ["data/*.lance", "_mem_wal/*/*_gen_*/data/*.lance"])
def test_g13_lance_reads_no_file_through_a_link(tmp_path, pattern):
    table, other = used(tmp_path / "t"), used(tmp_path / "o")
    link = largest(table, pattern)
    link.unlink()
    link.symlink_to(largest(other, pattern))
    for verb in (rows, lambda handle: handle.compact(fold_wal=True)):
        with pytest.raises(StoreDenied, match="symbolic link") as caught:
            verb(again(table))
        assert str(link) in str(caught.value)


def test_g13_no_table_is_made_behind_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "_versions").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreDenied, match="symbolic link"):
        weir.create(str(tmp_path / "t"), pa.schema([pa.field("id", pa.int64())]))
    assert files(tmp_path / "elsewhere") == {}


def test_g13_discarding_a_failed_clone_stays_in_its_own_folders(tmp_path):
    """A clone begun in a folder that also holds other files, with a link in the clone's folder."""
    table = used(tmp_path / "t")
    target = tmp_path / "place"
    neighbour = used(target / "neighbour")
    before = files(target / "neighbour")
    precious = stranger(tmp_path / "outside", "thesis.txt")

    with pytest.raises(Died):
        clones.clone(watched(table.core, ("clone", "checkpoint"), dies_at("kept")), str(target))
    Path(target, "_weir", "staging").symlink_to(tmp_path / "outside")
    with pytest.raises(StoreDenied, match="link"):
        parents.discard(str(target))
    assert files(tmp_path / "outside") == precious
    Path(target, "_weir", "staging").unlink()
    parents.discard(str(target))
    assert files(tmp_path / "outside") == precious
    assert files(target / "neighbour") == before
    assert rows(again(neighbour)) == expect((A, "a2"), (B, "b"))
    assert not Path(target, "_mem_wal").exists()
    assert not Path(target, "_weir").exists()


def test_g13_the_root_of_a_table_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "t").symlink_to(tmp_path / "disk")
    table = used(tmp_path / "t")
    report = sweep(table)
    assert not report.errors
    assert report.deleted
    assert rows(again(table)) == expect((A, "a2"), (B, "b"))


def test_g13_a_deletion_behind_a_link_does_not_keep_the_others_from_theirs(tmp_path):
    store = LocalStore(str(tmp_path / "root"))
    before = stranger(tmp_path / "outside", "a")
    store.put_if_absent("d/a", b"1")
    store.put_if_absent("e/a", b"1")
    Path(store.uri, "link").symlink_to(tmp_path / "outside")
    with pytest.raises(StoreDenied, match="link"):
        store.delete(["d/a", "link/a", "e/a"])
    assert files(tmp_path / "outside") == before
    assert [m.path for m in store.list_folder("")[1]] == []
    assert store.head("d/a") is None
    assert store.head("e/a") is None


@pytest.mark.parametrize("verb", ["put", "put_if_absent"])
def test_g13_nothing_is_written_behind_a_link(tmp_path, verb):
    store = LocalStore(str(tmp_path / "root"))
    store.put("x", b"")
    before = stranger(tmp_path / "outside", "a")
    Path(store.uri, "link").symlink_to(tmp_path / "outside")
    for path in ("link/a", "link/new", "link/deep/new"):
        with pytest.raises(StoreDenied, match="link"):
            getattr(store, verb)(path, b"mine")
    assert files(tmp_path / "outside") == before
    assert not (tmp_path / "outside" / "deep").exists()


@pytest.mark.parametrize(
    "way", ["", ".", "..", "../../x", "/etc", "%2e%2e", "a/b", "wal", "manifest"]
)
def test_g13_an_sstable_is_named_by_one_folder_of_its_own(tmp_path, way):
    """Checked in shard manifests and in checkpoint and compaction records; the error names it."""
    table = used(tmp_path / "t")
    shard = table.shards()[0].id
    path = max(
        (p for p in Path(table.uri, paths.manifest_dir(shard)).glob("*.binpb")),
        key=lambda p: paths.parse_manifest_name(p.name),
    )
    manifest = decode_manifest(path.read_bytes(), path=str(path))
    hostile = dataclasses.replace(
        manifest, sstables=tuple(structs.replace(t, path=way) for t in manifest.sstables)
    )
    assert hostile.sstables
    with pytest.raises(CorruptEntry, match=path.name):
        decode_manifest(encode_manifest(hostile), path=str(path))
    with pytest.raises(InvalidInput):
        paths.sstable_dir(shard, way)

    made = table.checkpoint(scope="all")
    record = Path(table.uri, paths.chain_path(paths.checkpoint_chain(made.id), 1))
    raw = json.loads(record.read_bytes())
    (pin,) = raw["shards"]
    pin["sstables"] = [[1, way, None, None, None]]
    record.write_bytes(codec.dumps(raw))
    before = files(tmp_path)
    report = sweep(table)
    assert any(made.id.hex in e.replace("-", "") for e in report.errors), report.errors
    kept = files(tmp_path)
    assert {n: b for n, b in before.items() if "_gen_" in n or "/wal/" in n}.items() <= kept.items()
    for use in (
        lambda: table.clone(str(tmp_path / "copy"), made.id),
        lambda: table.restore(made.id),
        lambda: table.checkpoints(),
    ):
        with pytest.raises(CorruptEntry, match=str(made.id)):
            use()


ODD_PLACES = [
    "",
    "..",
    "../../x",
    "x/y",
    "~/x",
    "{here}/t/../o",
    "file://{here}/o",
    "file://{here}/t/%2e%2e/o",
    "s3://bucket/a/../b",
    "s3://bucket/a/%2E%2e/b",
    "s3://evil.example:443/b",
    "s3://key:secret@evil.example/b",
    "https://evil.example/b",
    "abfss://c@evil.example:443/b",
    7,
    None,
]


def rewrite(table, folder, change, seq=None):
    """Change the newest record of a chain, as an outsider with access to the folder can."""
    place = Path(table.uri, folder)
    path = max(place.iterdir()) if seq is None else Path(table.uri, paths.chain_path(folder, seq))
    raw = json.loads(path.read_bytes())
    change(raw)
    path.write_bytes(codec.dumps(raw))
    return path


def record_of(kind, table, made):
    """The folder of a record that names a place, and how to make it name another."""
    shard = table.shards()[0].id
    return {
        "owner": (paths.checkpoint_chain(made), lambda raw, to: raw.update(owner=to)),
        "pin": (paths.clone_chain(), lambda raw, to: raw["pins"][0].update(uri=to)),
        "parent": (paths.clone_chain(), lambda raw, to: raw.update(parent=to)),
        "log place": (paths.places_chain(shard), lambda raw, to: raw.update(uri=to)),
        "table": (paths.table_chain(), lambda raw, to: raw.update(wal_uri=to)),
    }[kind]


@pytest.mark.parametrize("kind", ["owner", "pin", "parent", "log place", "table"])
def test_g13_a_record_names_places_as_weir_spells_them(tmp_path, monkeypatch, kind):
    """Any other spelling is damage: a relative path means another place in each process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    parent = used(tmp_path / "p")
    table = parent.clone(str(tmp_path / "t"), wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, [1], "c")
    table.checkpoint("all")  # so that this clone goes on sharing files
    table.compact()  # and the next one shares a file of this one
    with table.writer() as writer:
        put(writer, [2], "c")
    made = clones.clone(table.core, str(tmp_path / "child")).store
    (pin,) = (p for p in read_lineage(made).pins if p.uri == table.uri)
    used(tmp_path / "o")
    folder, change = record_of(kind, table, pin.checkpoint)
    seq = 1 if kind == "owner" else None
    before = files(tmp_path)

    def use():
        handle = again(table)
        report = sweep(handle)
        if report.errors:
            raise CorruptEntry("; ".join(report.errors))
        with handle.writer():
            pass

    for place in ODD_PLACES:
        if place is None and kind not in ("pin", "wal store"):
            continue  # these records may name no place
        hostile = place.format(here=tmp_path) if isinstance(place, str) else place
        path = rewrite(table, folder, lambda raw, to=hostile: change(raw, to), seq)
        with pytest.raises(CorruptEntry) as caught:
            use()
        assert str(path.relative_to(table.uri)) in str(caught.value), hostile
        after = files(tmp_path)
        theirs = {n: data for n, data in before.items() if not n.startswith(("t/", "w/"))}
        assert theirs.items() <= after.items(), hostile


@pytest.mark.parametrize("how", ["collect", "discard"])
def test_g13_a_clone_lets_go_of_its_own_pins_only(tmp_path, how):
    """A record that names another table's checkpoint as the clone's pin does not delete it."""
    parent, other = used(tmp_path / "p"), used(tmp_path / "o")
    kept = other.checkpoint(scope="all", name="month-end")
    deep = how == "collect"

    def die(step):
        if step == "kept" and not deep:
            raise RuntimeError(step)

    with contextlib.suppress(RuntimeError):
        clones.clone(
            watched(parent.core, ("clone", "checkpoint"), die), str(tmp_path / "t"), deep=deep
        )
    store = open_store(str(tmp_path / "t"))
    lineage = read_lineage(store)
    hostile = structs.replace(lineage, pins=(ParentPin(other.uri, kept.id),))
    append_lineage(store, hostile, uuid4())
    if deep:
        report = sweep(weir.open(str(tmp_path / "t")))
        assert any(str(kept.id) in error for error in report.errors), report.errors
    else:
        with pytest.raises(CorruptEntry, match=str(kept.id)):
            parents.discard(str(tmp_path / "t"))
    with again(other).writer() as writer:
        put(writer, range(100), "late")
        writer.flush()
    other.compact()
    assert not sweep(other).errors
    assert rows(again(other), checkpoint=kept.id) == expect((A, "a2"), (B, "b"))


def test_g13_a_log_is_collected_only_in_a_folder_that_names_the_table(tmp_path):
    """A record that names another table's WAL store, or its folder, deletes nothing there."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w1"))
    other = make(tmp_path / "o", 1, wal_uri=str(tmp_path / "w2"))
    for each in (table, other):
        with each.writer() as writer:
            put(writer, A, "a")
            writer.flush()
            put(writer, B, "b")
    assert table.shards()[0].id == other.shards()[0].id
    folder = paths.places_chain(table.shards()[0].id)
    theirs = other.core.record.wal_folder
    for place, log in ((tmp_path / "w2", None), (tmp_path / "o", None), ("w2", theirs)):
        named = {"uri": str(tmp_path / place)} | ({"folder": log} if log else {})
        rewrite(table, folder, lambda raw, named=named: raw.update(named))
        before = files(tmp_path)
        report = sweep(again(table), kinds=["wal"])
        assert report.skipped
        after = files(tmp_path)
        assert {n: b for n, b in before.items() if n[0] in "ow"}.items() <= after.items()
    assert rows(again(other)) == expect((A, "a"), (B, "b"))


def test_g13_a_base_manifest_leads_no_clean_up_astray(tmp_path):
    """Lance deletes what it lists below the table, never what a manifest names elsewhere."""
    parent = used(tmp_path / "p")
    parent.compact()
    copy = parent.clone(str(tmp_path / "t"))
    before = files(tmp_path / "p")
    with copy.writer() as writer:
        put(writer, range(50), "new")
    copy.compact()  # old versions of the clone name files of the parent, by its URI
    assert not sweep(copy, kinds=["base"]).errors
    kept = files(tmp_path / "p")
    assert {name for name in before if name.startswith(("data/", "_versions/"))} <= set(kept)
    assert rows(again(parent)) == expect((A, "a2"), (B, "b"))


def test_g13_a_record_chooses_a_bucket_but_never_the_host_that_sees_the_credentials(tmp_path):
    """The forged bucket is requested from the caller's endpoint, never from a foreign host."""
    seen = []

    class Endpoint(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, self.headers["authorization"]))
            self.send_error(403)

        do_HEAD = do_PUT = do_GET  # noqa: N815

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        options = {
            "aws_access_key_id": "key",
            "aws_secret_access_key": "secret",
            "aws_region": "us-east-1",
            "aws_endpoint": f"http://127.0.0.1:{server.server_address[1]}",
            "allow_http": "true",
        }
        parent = weir.open(used(tmp_path / "p").uri, storage_options=options)
        copy = parent.clone(str(tmp_path / "c"))
        (pin,) = read_lineage(copy.core.store).pins
        rewrite(
            parent,
            paths.checkpoint_chain(pin.checkpoint),
            lambda raw: raw.update(owner="s3://evil.example/x"),
            seq=1,
        )
        assert not sweep(parent).errors
        assert Holds(parent.core.store).load(pin.checkpoint) is not None
        assert seen == [], "collection asks no clone (C-15)"
        parent.release_clone("s3://evil.example/x")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert seen
    assert all(path.startswith("/evil.example") for path, _ in seen)
    assert all("Signature=" in sent and "secret" not in sent for _, sent in seen)


def forged(tmp_path):
    """Two tables with WAL stores; the records of the first name the second's folder."""
    log_only = weir.WriterConfig(enable_memtable=False)
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w1"), writer_defaults=log_only)
    other = make(tmp_path / "o", 1, wal_uri=str(tmp_path / "w2"), writer_defaults=log_only)
    for each in (table, other):
        with each.writer() as writer:
            put(writer, A, "a")
    folder = paths.places_chain(table.shards()[0].id)
    theirs = json.loads(max(Path(other.uri, folder).iterdir()).read_bytes())
    named = {"uri": theirs["uri"], "folder": theirs["folder"]}
    rewrite(table, folder, lambda raw: raw.update(named))
    return table, other


def use_log(table, way, **options):
    """Write to, read or move the log of the table through a new handle."""
    fresh = again(table, **options)
    if way == "read":
        rows(fresh)
    elif way == "move":
        fresh.move_wal(f"{table.uri}-w3")
    else:
        with fresh.writer() as writer:
            put(writer, [1], "stray")


@pytest.mark.parametrize("alias", [None, "w2"])
@pytest.mark.parametrize("way", ["writer", "read", "move"])
def test_s8_a_forged_record_leads_nobody_into_another_table_s_log(tmp_path, way, alias):
    """The folder says whose logs it holds; our own records about it do not count (G-13).

    Nor does it count that the caller named the store as his own: several tables may have it.
    """
    table, other = forged(tmp_path)
    before = files(tmp_path / "w2")
    if alias is not None:  # the record names a store that is not there, the caller the other's
        places = paths.places_chain(table.shards()[0].id)
        rewrite(table, places, lambda raw: raw.update(uri=str(tmp_path / "w0")))
        alias = str(tmp_path / alias)

    with pytest.raises(WalStoreMismatch, match="another table's log") as caught:
        use_log(table, way, wal_uri=alias)
    assert other.uri in str(caught.value)
    assert files(tmp_path / "w2") == before
    assert rows(again(other)) == expect((A, "a"))


@pytest.mark.parametrize("way", ["writer", "read", "move"])
def test_g13_a_link_in_the_table_leads_no_record_out_of_it(tmp_path, way):
    """Records may name places below the table's own root."""
    table, other = forged(tmp_path)
    Path(table.uri, "own").symlink_to(tmp_path / "w2")
    places = paths.places_chain(table.shards()[0].id)
    rewrite(table, places, lambda raw: raw.update(uri=f"{table.uri}/own"))
    before = files(tmp_path / "w2")
    with pytest.raises(WalStoreMismatch, match="another table's log"):
        use_log(table, way)
    sweep(again(table))
    assert files(tmp_path / "w2") == before
    assert rows(again(other)) == expect((A, "a"))


def test_s8_a_table_that_was_moved_reaches_its_log_when_that_is_allowed(tmp_path):
    log_only = weir.WriterConfig(enable_memtable=False)
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"), writer_defaults=log_only)
    with table.writer() as writer:
        put(writer, A, "a")
    shutil.move(table.uri, tmp_path / "moved")
    with pytest.raises(WalStoreMismatch, match="weir_allow"):
        rows(weir.open(str(tmp_path / "moved")))
    moved = weir.open(
        str(tmp_path / "moved"), storage_options={"weir_allow": f"/nowhere, {tmp_path}/w"}
    )
    with moved.writer() as writer:
        put(writer, B, "b")
    assert rows(moved) == expect((A, "a"), (B, "b"))
    # A link from the old path is the same place.
    (tmp_path / "t").symlink_to(tmp_path / "moved")
    assert rows(weir.open(str(tmp_path / "t"))) == expect((A, "a"), (B, "b"))


def test_g13_an_allowed_place_may_have_spaces_in_its_path(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "my disk" / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
    shutil.move(table.uri, tmp_path / "moved")
    allowed = f"/nowhere, {tmp_path}/my disk/w"  # as the error says to write it
    assert rows(weir.open(str(tmp_path / "moved"), storage_options={"weir_allow": allowed}))
    (tmp_path / "my").mkdir()
    consent = Consent.of(str(tmp_path / "t"), {"weir_allow": allowed})
    assert not consent.covers(str(tmp_path / "my"))


def test_g13_with_a_list_of_allowed_places_a_record_chooses_no_new_one(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    rewrite(table, paths.table_chain(), lambda raw: raw.update(wal_uri=str(tmp_path / "home")))
    with pytest.raises(StoreDenied, match="weir_allow"):
        put(again(table, storage_options={"weir_allow": ""}).writer(), A, "a")
    assert not (tmp_path / "home").exists()
    with again(table, storage_options={"weir_allow": str(tmp_path)}).writer() as writer:
        put(writer, A, "a")
    assert (tmp_path / "home").exists()


def shard_record(table, place):
    """Forge the record of a move: it says that the shard's log is in `place`."""
    folder = paths.places_chain(table.shards()[0].id)
    rewrite(table, folder, lambda raw: raw.update(uri=str(place)))


@pytest.mark.parametrize("is_linked", [False, True])
def test_g13_a_record_opens_no_place_for_the_log_where_something_else_is(tmp_path, is_linked):
    """Even without a list of allowed places the place must know the table or be empty (S-2)."""
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    home = tmp_path / "home"
    home.mkdir()
    (home / "diary").write_text("mine")
    Path(table.uri, "own").symlink_to(home)
    named = f"{table.uri}/own" if is_linked else str(home)
    rewrite(table, paths.table_chain(), lambda raw: raw.update(wal_uri=named))
    with pytest.raises(StoreDenied, match=r"not empty.*weir_allow"):
        put(again(table).writer(), B, "b")
    assert files(home) == {"diary": b"mine"}
    # Naming the place in the call is consent; from then on the place knows the table.
    with weir.open(table.uri, wal_uri=str(home)).writer() as writer:
        put(writer, B, "b")
    with again(table).writer() as writer:
        put(writer, [99], "c")
    assert rows(again(table))[99] == "c"


def test_g13_a_shard_s_record_opens_no_place_for_the_log_that_the_table_s_does_not_name(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
    shard_record(table, tmp_path / "empty")
    with again(table).writer() as writer:  # of which no row was in the log
        put(writer, B, "b")
    assert not (tmp_path / "empty").exists()
    assert log_place(table).uri == str(tmp_path / "w")
    assert rows(again(table)) == expect((A, "a"), (B, "b"))


def test_s2_a_replaced_disk_needs_no_word(tmp_path):
    """A table that finds its WAL store empty goes on without consent."""
    table = make(tmp_path / "t", 2, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, [1], "a")
    shutil.rmtree(tmp_path / "w")
    (tmp_path / "w" / "lost+found").mkdir(parents=True)
    with again(table).writer() as writer:
        put(writer, range(2, 12), "b")
    assert len(rows(again(table))) == 11
    folders = {path.name for path in (tmp_path / "w").iterdir()}
    assert folders == {"lost+found", again(table).core.record.wal_folder}, "one, for all shards"


def test_g13_a_dropped_table_leaves_no_word_in_its_wal_store(tmp_path):
    table = make(tmp_path / "t", 1, wal_uri=str(tmp_path / "w"))
    with table.writer() as writer:
        put(writer, A, "a")
    weir.drop(table.uri)
    # C-16: only the fences, which stop its writers.
    assert {p.parent.name for p in (tmp_path / "w").rglob("*") if p.is_file()} == {"wal"}


def lance_manifest(place):
    """The newest version of a Lance dataset: its path and its bytes."""
    newest = max(Path(place, "_versions").glob("*.manifest"), key=lambda p: p.stat().st_mtime_ns)
    return newest, newest.read_bytes()


def with_files_at(raw, place):
    """The manifest of a dataset whose files lie in another place."""
    return clone_manifest(raw, place, path="x")


@pytest.mark.parametrize("spelling", ["{}", "file://{}", "{}/../o"])
def test_g13_a_base_that_names_files_elsewhere_is_not_read(tmp_path, spelling):
    """A plain scan with the operator's rights would hand out another table's rows."""
    table, other = used(tmp_path / "t"), used(tmp_path / "o")
    table.compact()
    other.compact()
    path, _ = lance_manifest(table.uri)
    _, theirs = lance_manifest(other.uri)
    path.write_bytes(with_files_at(theirs, spelling.format(other.uri)))
    with pytest.raises((StoreDenied, CorruptEntry)) as caught:
        rows(weir.open(table.uri))
    assert str(tmp_path / "o") in str(caught.value) or "versions" in str(caught.value)


def test_g13_files_behind_a_link_in_the_table_are_not_its_own(tmp_path):
    table, other = used(tmp_path / "t"), used(tmp_path / "o")
    table.compact()
    other.compact()
    Path(table.uri, "own").symlink_to(other.uri)
    path, _ = lance_manifest(table.uri)
    _, theirs = lance_manifest(other.uri)
    path.write_bytes(with_files_at(theirs, f"{table.uri}/own"))
    with pytest.raises(StoreDenied, match="weir_allow"):
        rows(weir.open(table.uri))


def test_g13_the_files_of_a_parent_are_read_by_its_own_word(tmp_path):
    """The parent holds a checkpoint for the clone at this URI, and none for a copy of the clone."""
    parent = used(tmp_path / "p")
    parent.compact()
    copy = parent.clone(str(tmp_path / "c"))
    child = copy.clone(str(tmp_path / "d"))
    for clone in (copy, child):
        assert rows(weir.open(clone.uri)) == expect((A, "a2"), (B, "b"))
    shutil.copytree(copy.uri, tmp_path / "stolen")
    with pytest.raises(StoreDenied, match="weir_allow"):
        rows(weir.open(str(tmp_path / "stolen")))
    allowed = weir.open(str(tmp_path / "stolen"), storage_options={"weir_allow": parent.uri})
    assert rows(allowed) == expect((A, "a2"), (B, "b"))
    with pytest.raises(StoreDenied, match="weir_allow"):
        rows(weir.open(copy.uri, storage_options={"weir_allow": ""}))


def test_g13_an_sstable_names_no_files_elsewhere(tmp_path):
    table, other = used(tmp_path / "t"), used(tmp_path / "o")
    mine, theirs = (  # the newest: older ones are in the base, and not read
        max(shard_folder(t).glob("*_gen_*"), key=lambda p: int(p.name.rpartition("_")[2]))
        for t in (table, other)
    )
    path, _ = lance_manifest(mine)
    _, raw = lance_manifest(theirs)
    path.write_bytes(with_files_at(raw, str(theirs)))
    with pytest.raises(CorruptEntry, match="outside its folder"):
        rows(weir.open(table.uri))


def test_g13_a_clone_of_a_forged_clone_pins_nothing_elsewhere(tmp_path):
    """Cloning pins the parents named by the lineage, but only those that hold a pin for it."""
    parent, other = used(tmp_path / "p"), used(tmp_path / "o")
    kept = other.checkpoint(scope="all")
    copy = parent.clone(str(tmp_path / "c"))
    lineage = read_lineage(copy.core.store)
    hostile = structs.replace(lineage, pins=(*lineage.pins, ParentPin(other.uri, kept.id)))
    append_lineage(copy.core.store, hostile, uuid4())
    before = files(tmp_path / "o")
    with pytest.raises(StoreDenied, match="not its pin"):
        again(copy).clone(str(tmp_path / "d"))
    assert files(tmp_path / "o") == before


def test_g13_an_unfinished_clone_of_another_table_is_not_told_to_stop(tmp_path):
    """A forged owner: an operator of this table must not end the clone of its real parent (C-3)."""
    parent, table = used(tmp_path / "p"), used(tmp_path / "t")

    with pytest.raises(Died):
        clones.clone(
            watched(parent.core, ("clone", "checkpoint"), dies_at("kept")), str(tmp_path / "c")
        )
    store = open_store(str(tmp_path / "c"))
    (pin,) = read_lineage(store).pins
    shutil.copytree(
        Path(parent.uri, paths.checkpoint_chain(pin.checkpoint)),
        Path(table.uri, paths.checkpoint_chain(pin.checkpoint)),
    )
    before = files(tmp_path / "c")
    table.gc(min_age=0, fence_retention="2m")
    assert table.release_clone(str(tmp_path / "c")) == [pin.checkpoint]
    assert files(tmp_path / "c") == before


def test_g13_a_corrupt_checkpoint_leaves_the_table_as_it_was(tmp_path):
    """A restore opens what a record names, and reads what it would write, before it writes."""
    table = used(tmp_path / "t")
    made = table.checkpoint(scope="all")
    record = Path(table.uri, paths.chain_path(paths.checkpoint_chain(made.id), 1))
    good = json.loads(record.read_bytes())
    before = rows(table)
    newest = good["shards"][0]["sstables"][-1][0]
    changes = [
        {"sstables": [[newest, "0badc0de_gen_1", None, None, None]]},  # not there
        {"sstables": [[99, "0badc0de_gen_1", None, None, None]]},
        {"sstables": [[1, "a_gen_1", None, None, None], [1, "b_gen_1", None, None, None]]},
        {"current_generation": 2**64},
        {"current_generation": -1},
        {"wal_through": 2**70},
        {"epoch": 1.5},
    ]
    for change in changes:
        raw = json.loads(json.dumps(good))
        raw["shards"][0].update(change)
        record.write_bytes(codec.dumps(raw))
        with pytest.raises((CorruptEntry, MissingEntry)):
            again(table).restore(made.id)
        assert rows(again(table)) == before, change
        with again(table).writer():
            pass


def test_g13_the_account_of_a_record_is_not_taken():
    """An abfss URI names the account that gets the request; a record cannot choose it."""
    consent = Consent.of("abfss://c@mine.dfs.core.windows.net/t", {})
    assert consent.may_ask("abfss://other@mine.dfs.core.windows.net/x")
    assert not consent.may_ask("abfss://c@evil.dfs.core.windows.net/t")
    assert not Consent.of("s3://b/t", None).may_ask("abfss://c@evil.dfs.core.windows.net/t")
    allowed = {"weir_allow": "abfss://c@evil.dfs.core.windows.net"}
    assert Consent.of("s3://b/t", allowed).may_ask("abfss://c@evil.dfs.core.windows.net/t")
    with pytest.raises(InvalidInput):
        Consent.of("s3://b/t", {"weir_allow": "s3://b/../c"})


def test_p4_a_clone_in_the_making_prints_no_secrets(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(clones, "_run", lambda job, _lineage: seen.append(repr(job)))
    table = make(tmp_path / "t", 1, storage_options={"aws_secret_access_key": "hunter2"})
    with contextlib.suppress(Exception):
        table.clone(str(tmp_path / "c"))
    (text,) = seen
    assert "uri=" in text
    assert "hunter2" not in text


def test_a_damaged_entry_is_named_by_its_place_and_the_next_step(tmp_path):
    """A log and a table may be on two stores: a path alone does not say which object it is."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    table = weir.create(tmp_path / "t", schema, primary_key="id")
    writer = table.shard(None).writer()
    writer.put([{"id": 1}])
    (*_, newest) = sorted((tmp_path / "t" / "_mem_wal").glob("*/wal/*.arrow"))
    newest.write_bytes(b"torn")
    with pytest.raises(weir.CorruptEntry) as caught:
        weir.open(table.uri).scan().to_table()
    assert str(newest) in str(caught.value)
    assert "roll back to a checkpoint" in str(caught.value)
    manifests = list((tmp_path / "t" / "_mem_wal").glob("*/manifest/*.binpb"))
    for manifest in manifests:
        manifest.write_bytes(b"torn")
    with pytest.raises(weir.CorruptEntry) as caught:
        weir.open(table.uri).scan().to_table()
    assert any(str(manifest) in str(caught.value) for manifest in manifests)
    assert "from a copy of the table" in str(caught.value)


@pytest.mark.parametrize("spec", [1 << 32, -1])
def test_g13_a_number_that_lance_cannot_store_is_a_damaged_record(tmp_path, spec):
    """Found by an attack: compact raised a plain ValueError."""
    table = make(tmp_path / "t", 1)
    path = rewrite(table, paths.table_chain(), lambda raw: raw.update(spec=spec))
    with pytest.raises(CorruptEntry, match=path.name):
        weir.open(table.uri)
    path = rewrite(table, paths.table_chain(), lambda raw: raw.update(spec=1))
    rewrite(table, paths.table_chain(), lambda raw: raw["routing"][0].update(spec=spec))
    with pytest.raises(CorruptEntry, match=path.name):
        weir.open(table.uri)


def test_g13_a_time_that_no_date_shows_is_a_damaged_record(tmp_path):
    """A read of the table as of some time raised a plain OverflowError."""
    table = make(tmp_path / "t", 1)
    folder = paths.checkpoint_chain(table.checkpoint("durable").id)
    path = rewrite(table, folder, lambda raw: raw.update(created=1e300), seq=1)
    with pytest.raises(CorruptEntry, match=path.name):
        checkpoints.before(again(table).core, dt.datetime.now(dt.UTC))

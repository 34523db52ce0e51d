"""G-13: real objects of a table, changed by an attacker with write access, lead nowhere else."""

import contextlib
import dataclasses
import json
import os
import random
import shutil
from pathlib import Path
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from msgspec import structs

import weir
from tests.support.moments import expect, make, put, rows
from weir.errors import WeirError
from weir.format import paths
from weir.format.lance_file import assemble
from weir.format.lance_messages import read_manifest
from weir.format.manifest import decode_manifest, encode_manifest
from weir.upkeep.gc.collect import collect

ROUNDS = int(os.environ.get("WEIR_STRANGERS", "24"))
A, B = range(10), range(5, 20)


def files(place):
    found = {}
    for folder, _, names in os.walk(place):
        for name in names:
            path = Path(folder, name)
            found[str(path.relative_to(place))] = path.read_bytes()
    return found


class World:
    """A table that an attacker may write to, and surrounding data that they may not."""

    def __init__(self, root):
        self.root = root
        self.other = make(root / "other", 1, wal_uri=str(root / "other-wal"))
        with self.other.writer() as writer:
            put(writer, A, "secret")
            writer.flush()
            put(writer, B, "secret")
        self.held = self.other.checkpoint(scope="all", name="month-end")
        (root / "home").mkdir()
        (root / "home" / "thesis.txt").write_text("precious")
        self.parent = make(root / "parent", 1)
        with self.parent.writer() as writer:
            put(writer, A, "a")
        self.parent.compact()
        table = self.parent.clone(str(root / "t"), wal_uri=str(root / "wal"))
        self.uri = table.uri
        with table.writer() as writer:
            put(writer, B, "b")
            writer.flush()
        self.made = table.checkpoint(scope="all", name="mine")
        with table.writer(weir.WriterConfig(enable_memtable=False)) as writer:
            put(writer, [1], "c")
        table.compact()
        table.clone(str(root / "child"))
        with table.writer() as writer:
            put(writer, [2], "d")
            writer.flush()
        self.outside = {n: files(root / n) for n in ("other", "other-wal", "home")}
        shutil.copytree(root / "t", root / "backup")

    def reset(self):
        shutil.rmtree(self.root / "t")
        shutil.copytree(self.root / "backup", self.root / "t")

    def hostile(self, rng):
        """A value that tries to lead elsewhere, or to break the code that reads it."""
        return rng.choice(
            [
                str(self.root / "other"),
                str(self.root / "other-wal"),
                str(self.root / "home"),
                f"file://{self.root}/other",
                f"{self.root}/t/../other",
                "../../other",
                "..",
                "/etc",
                "%2e%2e/other",
                "s3://evil.example/x",
                "abfss://c@evil.dfs.core.windows.net/x",
                str(self.held.id),
                self.other.core.record.wal_folder,
                str(self.other.core.record.table_id),
                str(uuid4()),
                "0badc0de_gen_1",
                "wal",
                "x\x00y",
                "",
                None,
                True,
                -1,
                0,
                2**64,
                1.5,
                [],
                {},
            ]
        )


def leaves(value, found):
    """Every place in a JSON value that can be changed, as (container, key)."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        if isinstance(inner, dict | list):
            leaves(inner, found)
        found.append((value, key))
    return found


def change(world, rng):
    """Change one record or manifest of the table; return a description of the change."""
    if rng.random() < 0.2:
        return change_manifest(world, rng)
    records = sorted(p for p in (world.root / "t" / "_weir").rglob("*.json"))
    path = rng.choice(records)
    raw = json.loads(path.read_bytes())
    spots = leaves(raw, [])
    for _ in range(rng.randint(1, 2)):
        container, key = rng.choice(spots)
        value = world.hostile(rng)
        if isinstance(container, dict) and isinstance(key, str) and rng.random() < 0.1:
            container[str(value)] = container.pop(key, None)
        else:
            with contextlib.suppress(IndexError):
                container[key] = value
    path.write_text(json.dumps(raw))
    return f"{path.relative_to(world.root)}: {raw}"


def change_manifest(world, rng):
    """Let the newest manifest of a shard name other SSTables, or another shard."""
    found = sorted((world.root / "t" / "_mem_wal").rglob("*.binpb"))
    path = max(found, key=lambda p: paths.parse_manifest_name(p.name) or 0)
    manifest = decode_manifest(path.read_bytes(), path=str(path))
    name = rng.choice(["../../../other", "..", "/etc", "%2e%2e", "wal", "0badc0de_gen_1", "a/b"])
    tables = tuple(structs.replace(t, path=name) for t in manifest.sstables)
    hostile = rng.choice(
        [
            dataclasses.replace(manifest, sstables=tables),
            dataclasses.replace(manifest, shard_id=uuid4()),
            dataclasses.replace(manifest, replay_after=2**63, last_seen=2**63),
            dataclasses.replace(manifest, writer_epoch=2**63),
        ]
    )
    path.write_bytes(encode_manifest(hostile))
    return f"{path.relative_to(world.root)}: {hostile}"


def use(world, number):
    """Do everything an operator may do; each verb works or fails with an error of weir's."""

    def write():
        with weir.open(world.uri).writer() as writer:
            put(writer, [number], "w")

    seen = []
    verbs = [
        lambda: seen.append(rows(weir.open(world.uri))),
        lambda: weir.open(world.uri).checkpoints(),
        lambda: seen.append(rows(weir.open(world.uri), checkpoint=world.made.id)),
        lambda: collect(weir.open(world.uri).core, 0, 120, keep_first_entries=False),
        write,
        lambda: weir.open(world.uri).compact(),
        lambda: weir.open(world.uri).clone(str(world.root / f"copy-{number}")),
        lambda: weir.open(world.uri).restore(world.made.id),
        lambda: weir.open(world.uri).move_wal(str(world.root / f"moved-{number}")),
        lambda: weir.open(world.uri).gc(min_age=0, fence_retention="121s"),
    ]
    for verb in verbs:
        with contextlib.suppress(WeirError):
            verb()
    return seen


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_g13_mutated_records_lead_nowhere(world, seed):
    world.reset()
    rng = random.Random(f"stranger/{seed}")
    what = change(world, rng)
    for seen in use(world, seed):
        assert "secret" not in seen.values(), what
    for name, before in world.outside.items():
        assert files(world.root / name) == before, what
    assert rows(weir.open(world.other.uri)) == expect((A, "secret"), (B, "secret"))


@pytest.mark.parametrize("way", ["../../o/data/{}", "{root}/o/data/{}", "%2e%2e/%2e%2e/o/data/{}"])
def test_g13_lance_takes_the_name_of_a_file_for_one_name(tmp_path, way):
    """weir's path check relies on this: a file name in a manifest cannot lead out of `data`."""
    lance.write_dataset(pa.table({"v": ["mine"]}), str(tmp_path / "t"))
    lance.write_dataset(pa.table({"v": ["secret"]}), str(tmp_path / "o"))
    theirs = next((tmp_path / "o" / "data").iterdir()).name
    path = next((tmp_path / "t" / "_versions").glob("*.manifest"))
    raw = path.read_bytes()
    manifest = read_manifest(raw, path="x")
    manifest.fragments[0].files[0].path = way.format(theirs, root=tmp_path)
    manifest.ClearField("transaction_section")
    manifest.ClearField("index_section")
    path.write_bytes(assemble(manifest.SerializeToString(), before=b"", footer_of=raw))
    with pytest.raises((OSError, pa.ArrowException, ValueError), match="Not found"):
        lance.dataset(str(tmp_path / "t")).to_table()

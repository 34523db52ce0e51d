"""weir and pylance on one shard, in both directions, including both at once."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import weir
from tests.support.local_shard import LocalShard, ids, row
from weir.errors import FencedError
from weir.format import paths
from weir.format.manifest import Status
from weir.log.fence import claim_shard
from weir.log.tailer import WalTailer
from weir.types import Epoch

pytestmark = pytest.mark.interop

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@pytest.fixture
def shard(tmp_path: Path) -> LocalShard:
    return LocalShard(tmp_path / "t")


def native(shard: LocalShard, **settings):
    return lance.dataset(shard.uri).mem_wal_writer(str(shard.shard), **settings)


def rows(*numbers: int, x: float = 0.0) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "x": pa.array([x] * len(numbers), pa.float64()),
            "s": pa.array([f"s{n}" for n in numbers]),
        }
    )


def native_rows(writer) -> list[tuple[int, float]]:
    table = writer.lsm_scanner().to_table()
    return sorted(zip(table.column("id").to_pylist(), table.column("x").to_pylist(), strict=True))


def test_pylance_replays_what_weir_wrote(shard: LocalShard) -> None:
    with shard.writer(enable_memtable=False) as w:
        w.put([row(1, 1.0), row(2, 2.0)])
        w.delete([2])
        w.put([row(1, 5.0), row(3, 3.0)])
    writer = native(shard)
    assert native_rows(writer) == [(1, 5.0), (3, 3.0)]
    writer.put(rows(4))
    writer.close()
    assert [t.generation for t in shard.manifest().sstables] == [1]
    with shard.writer() as w:
        assert ids(w) == [1, 3, 4]


def test_weir_replays_what_a_killed_pylance_wrote(shard: LocalShard) -> None:
    program = textwrap.dedent(
        """
        import sys, lance, pyarrow as pa
        w = lance.dataset(sys.argv[1]).mem_wal_writer(sys.argv[2])
        for i in range(5):
            w.put(pa.table({"id": [i], "x": [float(i)], "s": ["p"]}))
            print(i, flush=True)
        sys.stdin.read()
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, shard.uri, str(shard.shard)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    acked = [int(process.stdout.readline()) for _ in range(5)]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stdin):
        stream.close()
    assert [e.num_rows for e in WalTailer(shard)] == [1] * 5
    with shard.writer() as w:
        assert ids(w) == acked
        assert w.stats().replayed_entries == 5


def test_weir_fences_a_live_pylance_writer(shard: LocalShard) -> None:
    writer = native(shard)
    writer.put(rows(1))
    with shard.writer() as w:
        assert ids(w) == [1]
        before = shard.log()
        for call in (lambda: writer.put(rows(2)), writer.close):
            with pytest.raises(OSError, match="fenced"):
                call()
        assert shard.log() == before
        w.put([row(3)])
        assert ids(w) == [1, 3]


def test_a_claim_without_the_sentinel_would_not_stop_pylance(shard: LocalShard) -> None:
    """Why F-1 needs both: the native append path does not check the epoch alone."""
    writer = native(shard)
    writer.put(rows(1))
    from weir.log.manifests import Manifests

    manifests = Manifests(shard.site)
    manifests.claim(manifests.require())
    writer.put(rows(2))  # acknowledged nevertheless
    with pytest.raises(OSError, match="fenced"):
        writer.close()


def test_pylance_fences_a_live_weir_writer(shard: LocalShard) -> None:
    w = shard.writer()
    w.put([row(1)])
    writer = native(shard)
    assert native_rows(writer) == [(1, 0.0)]
    with pytest.raises(FencedError) as fenced:
        w.put([row(2)])
    assert (fenced.value.epoch, fenced.value.fenced_by) == (1, 2)
    writer.put(rows(3))
    writer.close()
    with shard.writer() as again:
        assert ids(again) == [1, 3]


def test_a_sealed_shard_is_refused_by_both(shard: LocalShard) -> None:
    from dataclasses import replace

    from weir.errors import SealedShard
    from weir.log.manifests import Manifests
    from weir.log.rules import Evidence

    claim_shard(shard.site)
    Manifests(shard.site).update(
        lambda m: (replace(m, status=Status.SEALED), Evidence()), epoch=Epoch(1)
    )
    with pytest.raises(OSError, match="sealed"):
        native(shard)
    with pytest.raises(SealedShard):
        shard.writer()


def test_an_sstable_of_weir_is_continued_by_pylance_and_back(shard: LocalShard) -> None:
    expected: dict[int, float] = {}
    for turn in range(6):
        values = {turn: float(turn), 100: float(turn)}
        if turn % 2:
            writer = native(shard)
            writer.put(rows(turn, 100, x=float(turn)))
            if turn >= 3:
                writer.delete(pa.table({"id": pa.array([turn - 1], pa.int64())}))
                expected.pop(turn - 1)
            writer.close()
        else:
            with shard.writer() as w:
                w.put([row(k, v) for k, v in values.items()])
                if turn >= 2:
                    w.delete([turn - 1])
                    expected.pop(turn - 1)
        expected.update(values)
        with shard.writer() as w:
            found = w.scan(columns=["id", "x"]).read_all().to_pylist()
        assert {r["id"]: r["x"] for r in found} == expected
        writer = native(shard)
        assert dict(native_rows(writer)) == expected
        writer.close()
    generations = [t.generation for t in shard.manifest().sstables]
    assert generations == sorted(set(generations))


@pytest.mark.parametrize("first", ["weir", "pylance"])
def test_a_shard_passes_back_and_forth_through_crashes(shard: LocalShard, first: str) -> None:
    """Nothing is closed: each owner fences and replays what the previous one left in the log."""
    expected = set()
    kept = []
    for turn in range(8):
        if (turn % 2 == 0) == (first == "weir"):
            w = shard.writer(enable_memtable=turn % 4 == 0)
            w.put([row(turn)])
            kept.append(w)
        else:
            writer = native(shard)
            writer.put(rows(turn))
            kept.append(writer)
        expected.add(turn)
    with shard.writer() as w:
        assert ids(w) == sorted(expected)
    with shard.writer() as w:
        assert ids(w) == sorted(expected)


def test_keyless_rows_are_neither_lost_nor_doubled_between_owners(tmp_path: Path) -> None:
    shard = LocalShard(tmp_path / "a", key=False)
    kept = []
    for turn in range(6):
        if turn % 2:
            writer = native(shard)
            writer.put(rows(turn, turn))
            if turn == 3:
                writer.close()
            kept.append(writer)
        else:
            w = shard.writer()
            w.put([row(turn), row(turn)])
            if turn == 2:
                w.close()
            kept.append(w)
    with shard.writer() as w:
        assert ids(w) == sorted([*range(6), *range(6)])


def test_g7d_pylance_finds_the_latest_manifest_behind_a_hint_to_one_that_is_gone(tmp_path):
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    for n in range(3):
        with table.writer() as writer:
            writer.put([{"id": n}])
    shard = table.shards()[0]
    latest = shard.manifest()
    folder = tmp_path / "t" / paths.manifest_dir(shard.id)
    for path in folder.glob("*.binpb"):
        if paths.parse_manifest_name(path.name) != latest.version:
            path.unlink()
    (tmp_path / "t" / paths.manifest_hint_path(shard.id)).write_text('{"version":2}')
    lance.dataset(table.uri).mem_wal_writer(str(shard.id)).close()
    after = shard.manifest()
    assert after.version > latest.version
    assert after.writer_epoch == latest.writer_epoch + 1
    assert after.sstables == latest.sstables

"""`weir upgrade`: a table of 0.1.0 gets LanceDB's shard ids; a crash at any step loses nothing."""

import shutil
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import weir
from tests.support.dying import die_at_every_write
from tests.support.moments import SCHEMA
from tests.support.tables_of_0_1_0 import expected, rows, unpack
from weir.format.manifest import Status
from weir.format.sharding import lancedb_id
from weir.records.table import TableRecords
from weir.routing import opening
from weir.routing.shards import Shard
from weir.upkeep import upgrade as module


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return unpack(tmp_path)


def of_format_1(place: Path, monkeypatch, sharding=None) -> weir.Table:
    """A small table as made by 0.1.0: a row in the base, one in an SSTable, one in the log."""
    with monkeypatch.context() as patch:
        patch.setattr(opening, "FIRST_ROUTING", 1)
        table = weir.create(str(place), SCHEMA, primary_key="id", sharding=sharding)
    TableRecords(table.core.store).update(lambda record: replace(record, format=1))
    table = weir.open(table.uri)
    with table.writer() as writer:
        writer.put([{"id": 1, "v": "base"}, {"id": 2, "v": "base"}])
    table.compact()
    with table.writer() as writer:
        writer.put([{"id": 2, "v": "flushed"}])
    table.writer().put([{"id": 3, "v": "logged"}])  # left open, as by a killed process
    return weir.open(table.uri)


def native_ids(table: weir.Table, values) -> set:
    return {lancedb_id(table.sharding, value) for value in values}


def specs(table: weir.Table) -> list[int]:
    details = weir.open(table.uri).core.base().mem_wal
    assert details is not None
    return [spec.spec_id for spec in details.sharding_specs]


def test_x7_a_table_of_0_1_0_gets_lancedbs_ids_and_keeps_every_row(old: Path) -> None:
    table = weir.open(str(old / "keyed"))
    seen: list[tuple[str, int, int]] = []
    report = table.upgrade(progress=lambda *step: seen.append(step))
    want = expected(old, "keyed")
    assert (report.before, report.after, report.rows) == (1, 2, len(want))
    assert rows(table) == rows(table, freshness="base") == want
    assert [kind for kind, _, _ in seen if kind.startswith("upgrade")] == [
        f"upgrade: {step}" for step in ("look", "count", "fold", "verify", "seal", "stamp")
    ]
    again = weir.open(table.uri)
    assert again.core.record.format == 2
    assert {s.id for s in again.shards() if s.is_routed} == native_ids(again, (0, 1))
    assert specs(again) == [1]
    assert all(s.manifest().status is Status.SEALED for s in again.shards() if not s.is_routed)
    with again.writer() as writer:
        writer.put([{"id": 3, "v": "new", "n": 0}])
        # P-6: a batch accepted by a shard with an old id is known to its heir.
        assert not writer.put_once([{"id": 100, "v": "again", "n": 0}], app="job", version=7)
    assert {row["id"]: row["v"] for row in rows(again)}[3] == "new"
    again.reshard(weir.Bucket("id", 3))
    with weir.open(table.uri).writer() as writer:
        assert not writer.put_once([{"id": 100, "v": "again", "n": 0}], app="job", version=7)
    assert again.compact().skipped is None
    assert again.gc(min_age=0).ok
    assert len(rows(weir.open(table.uri))) == len(want)


def test_x7_an_append_only_table_is_upgraded_with_each_row_once(old: Path) -> None:
    table = weir.open(str(old / "appended"))
    report = table.upgrade()
    assert report.rows == len(expected(old, "appended"))
    assert rows(weir.open(table.uri), "n") == expected(old, "appended")
    with weir.open(table.uri).writer() as writer:
        writer.put([{"n": 20, "v": "new"}])
    assert len(rows(table, "n")) == report.rows + 1


def test_x7_a_dry_run_counts_and_writes_nothing(old: Path) -> None:
    def files() -> list[tuple[str, int]]:
        return sorted((str(p), p.stat().st_mtime_ns) for p in old.rglob("*") if p.is_file())

    before = files()
    report = weir.open(str(old / "keyed")).upgrade(dry_run=True)
    assert files() == before
    assert (report.dry_run, report.before, report.after, report.shards) == (True, 1, 2, 2)
    assert report.rows == len(expected(old, "keyed"))
    assert report.entries > 0
    assert report.sstables > 0


def test_x7_a_table_of_this_format_is_left_alone(tmp_path: Path) -> None:
    table = weir.create(str(tmp_path / "t"), SCHEMA, primary_key="id")
    report = table.upgrade()
    assert (report.before, report.after, report.shards) == (2, 2, 0)


def test_x7_a_writer_at_work_is_left_alone(tmp_path, monkeypatch) -> None:
    table = of_format_1(tmp_path / "t", monkeypatch)
    own = weir.open(table.uri)
    with own.writer() as writer:
        writer.put([{"id": 4, "v": "own"}])
        with pytest.raises(weir.InvalidInput, match="this handle has a writer"):
            own.upgrade()
        epochs = [s.manifest().writer_epoch for s in table.shards()]
        with pytest.raises(weir.InvalidInput, match=r"a writer .* is at work\. Stop all writers"):
            table.upgrade()
        assert [s.manifest().writer_epoch for s in table.shards()] == epochs
        writer.put([{"id": 4, "v": "still"}])
    assert table.core.refresh().format == 1
    assert table.upgrade().rows == 4


def test_x7_a_writer_that_comes_in_between_is_noticed(tmp_path, monkeypatch) -> None:
    table = of_format_1(tmp_path / "t", monkeypatch)
    fold = module._fold

    def busy(core, progress) -> None:
        fold(core, progress)
        with weir.open(core.uri).writer() as writer:
            writer.put([{"id": 9, "v": "meanwhile"}])
        fold(core, progress)

    monkeypatch.setattr(module, "_fold", busy)
    with pytest.raises(weir.InvalidInput, match="a writer wrote to it"):
        table.upgrade(quiet=0)
    assert table.core.refresh().format == 1
    assert {row["id"] for row in rows(table)} == {1, 2, 3, 9}


def test_x7_rows_of_who_slipped_in_before_the_seal_are_folded(tmp_path, monkeypatch) -> None:
    table = of_format_1(tmp_path / "t", monkeypatch)
    verify = module._verify

    def late(core, seen, found) -> None:
        verify(core, seen, found)
        with weir.open(core.uri).writer() as writer:
            writer.put([{"id": 9, "v": "late"}])

    monkeypatch.setattr(module, "_verify", late)
    table.upgrade(quiet=0)
    assert {row["id"] for row in rows(table, freshness="base")} == {1, 2, 3, 9}


def test_x7_nothing_is_stamped_when_a_row_is_missing(tmp_path, monkeypatch) -> None:
    """The base holds as many rows as readers saw, so only their keys show the difference."""
    table = of_format_1(tmp_path / "t", monkeypatch)
    fold = module._fold

    def faulty(core, progress) -> None:
        fold(core, progress)
        lance.dataset(core.uri).delete("id = 3")
        lance.write_dataset(
            pa.table({"id": [7], "v": ["x"]}, schema=SCHEMA), core.uri, mode="append"
        )

    monkeypatch.setattr(module, "_fold", faulty)
    with pytest.raises(weir.CorruptEntry, match=r"readers saw 3 rows .* the base holds 3 rows"):
        table.upgrade(quiet=0)
    assert table.core.refresh().format == 1
    assert all(s.manifest().status is Status.ACTIVE for s in table.shards())


def test_x7_a_shard_of_lancedbs_name_forbids_it(tmp_path, monkeypatch) -> None:
    table = of_format_1(tmp_path / "t", monkeypatch)
    (rival,) = native_ids(table, [None])
    with Shard(table.core, rival, None, is_routed=False).writer() as writer:
        writer.put([{"id": 1, "v": "theirs"}])
    with pytest.raises(weir.InvalidInput, match=f"has written to shard {rival}"):
        table.upgrade(quiet=0)


def test_x7_another_change_waits_for_it_and_it_for_another(tmp_path, monkeypatch) -> None:
    table = of_format_1(tmp_path / "t", monkeypatch)

    class Died(BaseException):
        pass

    def die(name: str) -> None:
        if name == "reshard.begun":
            raise Died

    core = replace(table.core, env=replace(table.core.env, failpoint=die))
    with pytest.raises(Died):
        module.upgrade(core, quiet=0)
    with pytest.raises(weir.InvalidInput, match=r"finish it first: table.upgrade\(\)"):
        weir.open(table.uri).reshard(weir.Bucket("id", 2))
    assert weir.open(table.uri).upgrade(quiet=0).after == 2


def test_x7_death_at_every_write_is_finished_by_the_next_run(tmp_path, monkeypatch) -> None:
    made = of_format_1(tmp_path / "made", monkeypatch)
    want = rows(made)
    place = tmp_path / "t"

    def run(life) -> None:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(tmp_path / "made", place)
        life.table(weir.open(str(place))).upgrade(quiet=0)

    def check(n: int, finished: bool) -> None:
        table = weir.open(str(place))
        assert rows(table) == want, n
        report = table.upgrade(quiet=0)
        assert report.after == 2
        assert rows(weir.open(str(place)), freshness="base") == want, n
        assert specs(table) == [1]
        assert {s.id for s in table.shards() if s.is_routed} == native_ids(table, [None])

    assert die_at_every_write(run, check) > 20

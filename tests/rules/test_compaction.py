"""L-4 to L-6: compaction folds every row once, despite crashes, races and concurrent reads."""

import threading
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import weir
from simulator.steps import Died, dies_at, watched
from weir.errors import CommitConflict
from weir.lake.base import fold, fold_commit
from weir.lake.base.fold_commit import FOLD
from weir.upkeep.compact import split
from weir.upkeep.compact import tasks as compact_tasks
from weir.upkeep.compact.jobs import Jobs, keep_base_from
from weir.upkeep.compact.policy import CompactionPolicy
from weir.upkeep.compact.run import compact
from weir.upkeep.tasks import LocalRunner, run_task

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.utf8())])
STEPS = ("claimed", "fenced", "planned", "written", "committed", "marked", "passed")
WAL_ONLY = weir.WriterConfig(enable_memtable=False)
SMALL = weir.WriterConfig(enable_memtable=False, max_memtable_rows=6)

Rows = Counter[tuple[int, str | None]]


def make(
    tmp_path: Path, *, keyed: bool = True, buckets: int = 2, config: weir.WriterConfig | None = None
) -> weir.Table:
    return weir.create(
        str(tmp_path / uuid.uuid4().hex),
        SCHEMA,
        primary_key="id" if keyed else None,
        sharding=weir.Bucket("id", buckets),
        writer_defaults=config,
    )


def rows_of(table: weir.Table, **kwargs: Any) -> Rows:
    return Counter((r["id"], r["v"]) for r in table.scan(**kwargs).to_table().to_pylist())


def in_base(table: weir.Table) -> Rows:
    return rows_of(table, freshness="base")


def put(table: weir.Table, rows: dict[int, str], deletes: tuple[int, ...] = ()) -> None:
    with table.writer() as writer:
        writer.put([{"id": k, "v": v} for k, v in rows.items()])
        if deletes:
            writer.delete(list(deletes))


def fill(table: weir.Table, *, keyed: bool) -> Rows:
    """Write three overlapping generations to each shard; return what a reader must see."""
    model: Rows = Counter()
    for number in range(3):
        rows = dict.fromkeys(range(number * 3, number * 3 + 12), f"{number}")
        gone = (number, number + 4) if keyed else ()
        put(table, rows, gone)
        if keyed:
            kept = {key: v for (key, v) in model if key not in rows} | rows
            model = Counter({(k, v): 1 for k, v in kept.items() if k not in gone})
        else:
            model.update(rows.items())
    return model


@pytest.mark.parametrize("keyed", [True, False])
def test_l4_everything_waiting_is_folded_in_one_commit(tmp_path: Path, keyed: bool) -> None:
    table = make(tmp_path, keyed=keyed)
    model = fill(table, keyed=keyed)
    before = table.core.lake.open_base().version
    report = table.compact()
    assert in_base(table) == rows_of(table) == model
    assert report.sstables == 6
    assert set(report.generations.values()) == {3}
    assert report.rows_written == model.total()
    said = [
        commit.properties
        for commit in table.core.lake.commits(after=before)
        if FOLD in commit.properties
    ]
    assert len(said) == 1
    assert str(next(iter(report.generations))) in said[0]["weir.progress"]
    # The marks for native readers are set, and nothing is left to fold.
    assert table.core.lake.open_base().marked == report.generations  # type: ignore[attr-defined]
    assert table.stats().generations == 0
    assert table.compact().job is None


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_l4_death_after_any_step_is_completed_by_the_next_run(
    tmp_path: Path, keyed: bool, step: str
) -> None:
    table = make(tmp_path, keyed=keyed)
    model = fill(table, keyed=keyed)
    with pytest.raises(Died):
        compact(watched(table.core, "compact", dies_at(step)))
    # L-5: in the middle of the fold every reader sees every row once.
    other = weir.open(table.uri)
    assert rows_of(other) == model
    report = compact(other.core, lease=0)
    assert rows_of(weir.open(table.uri)) == in_base(table) == model
    folds = [
        commit.version for commit in other.core.lake.commits(after=1) if FOLD in commit.properties
    ]
    assert len(folds) == 1, "folded twice"
    was_committed = STEPS.index(step) >= STEPS.index("committed")
    assert (report.completed is not None) == was_committed
    assert other.stats().generations == 0
    assert compact(other.core).job is None


@pytest.mark.parametrize("step", ["written", "committed", "marked"])
def test_l5_an_append_only_row_is_never_read_twice(tmp_path: Path, step: str) -> None:
    table = make(tmp_path, keyed=False)
    model = fill(table, keyed=False)
    seen: list[tuple[str, Rows]] = []
    pinned: list[Any] = []

    def look(now: str) -> None:
        if now == step:
            reader = weir.open(table.uri)
            seen.append((now, rows_of(reader)))
            pinned.append(reader.checkpoint(scope="durable", name=now))

    compact(watched(table.core, "compact", look))
    assert seen == [(step, model)]
    # A checkpoint pinned at that moment always reads the same rows.
    put(table, {100: "late"})
    table.compact()
    assert rows_of(table, checkpoint=pinned[0]) == model


def test_l7_without_the_note_rows_are_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the fold's note is what keeps reads correct."""
    table = make(tmp_path, keyed=False)
    model = fill(table, keyed=False)
    monkeypatch.setattr(fold_commit, "with_note", lambda schema, *_note: schema)
    with pytest.raises(Died):
        compact(watched(table.core, "compact", dies_at("committed")))
    assert rows_of(weir.open(table.uri)).total() == 2 * model.total()


def test_l4_a_fenced_compactor_cannot_talk_over_its_successor(tmp_path: Path) -> None:
    table = make(tmp_path, keyed=False)
    model = fill(table, keyed=False)
    second = weir.open(table.uri)

    def late(now: str) -> None:
        # The first run has written its files; the second takes over and commits, but has not
        # set its marks when the first one commits.
        if now == "written":
            with pytest.raises(Died):
                compact(watched(second.core, "compact", dies_at("committed")), lease=0)

    with pytest.raises(CommitConflict):
        compact(watched(table.core, "compact", late))
    assert rows_of(weir.open(table.uri)) == model
    compact(second.core, lease=0)
    assert in_base(table) == rows_of(table) == model


@pytest.mark.parametrize("keyed", [True, False])
def test_l4_of_two_at_once_one_wins(tmp_path: Path, keyed: bool) -> None:
    table = make(tmp_path, keyed=keyed)
    model = fill(table, keyed=keyed)
    other = weir.open(table.uri)
    reports = []

    def meanwhile(now: str) -> None:
        if now == "planned":
            reports.append(compact(other.core))

    report = compact(watched(table.core, "compact", meanwhile))
    assert reports[0].skipped
    assert reports[0].job is None
    assert report.job is not None
    assert in_base(table) == model


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("step", ["planned", "written", "committed", "passed"])
def test_l4_a_compactor_that_was_replaced_changes_nothing(
    tmp_path: Path, keyed: bool, step: str
) -> None:
    table = make(tmp_path, keyed=keyed)
    model = fill(table, keyed=keyed)
    other = weir.open(table.uri)

    def replaced(now: str) -> None:
        if now == step:
            compact(other.core, lease=0)

    with pytest.raises(CommitConflict):
        compact(watched(table.core, "compact", replaced))
    assert rows_of(weir.open(table.uri)) == in_base(table) == model
    assert table.stats().generations == 0


def test_l4_claims_race_for_the_same_record(tmp_path: Path) -> None:
    table = make(tmp_path)
    jobs = Jobs(table.core.store)
    jobs.claim("a", None)
    with pytest.raises(CommitConflict, match="another compactor"):
        jobs.claim("b", None)
    assert keep_base_from(table.core.store) is None


def test_l4_history_needed_by_an_unfinished_job_is_kept(tmp_path: Path) -> None:
    table = make(tmp_path)
    fill(table, keyed=True)
    with pytest.raises(Died):
        compact(watched(table.core, "compact", dies_at("committed")))
    kept = keep_base_from(table.core.store)
    latest = Jobs(table.core.store).latest()
    assert latest is not None
    assert latest.job is not None
    assert kept == latest.job.planned_at
    table.gc(min_age=0, fence_retention="2m")
    assert compact(table.core, lease=0).completed == latest.job.id


def test_l4_history_cleaned_up_by_others_doubles_nothing(tmp_path: Path) -> None:
    table = make(tmp_path, keyed=False)
    model = fill(table, keyed=False)
    with pytest.raises(Died):
        compact(watched(table.core, "compact", dies_at("committed")))
    lance.dataset(table.uri).update_config({"other": "tool"})
    from datetime import timedelta

    lance.dataset(table.uri).cleanup_old_versions(timedelta(0), delete_unverified=False)
    other = weir.open(table.uri)
    assert compact(other.core, lease=0).notes
    assert rows_of(weir.open(table.uri)) == in_base(other) == model


def test_l5_a_reader_in_a_loop_while_compaction_and_writes_run(tmp_path: Path) -> None:
    table = make(tmp_path, keyed=False)
    stop = threading.Event()
    acknowledged = 0
    wrong: list[str] = []

    def read() -> None:
        reader = weir.open(table.uri)
        while not stop.is_set():
            low = acknowledged
            count = reader.scan().count()
            if not low <= count <= acknowledged + 10:
                wrong.append(f"{low} <= {count} <= {acknowledged + 10}")

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for number in range(12):
            put(table, {number * 10 + i: "x" for i in range(10)})
            acknowledged += 10
            if number % 2:
                compact(table.core)
    finally:
        stop.set()
        thread.join()
    assert not wrong
    assert in_base(table).total() == 120


# -- tasks: the same rows however the work is cut --------------------------------------------------


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("cluster", [True, False])
def test_p5_tasks_in_slices_give_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keyed: bool, cluster: bool
) -> None:
    class Pieces(LocalRunner):
        name = "pieces"

        def run(self, core: Any, tasks: Any, progress: Any) -> Any:
            kinds.extend(task["run"] for task in tasks)
            # Twice, as under speculation: only one set of results counts.
            for task in tasks:
                run_task(core, task)
            return super().run(core, tasks, progress)

    kinds: list[str] = []
    monkeypatch.setattr(split, "SLICE_ROWS", 7)
    monkeypatch.setattr(split, "TASK_BYTES", 200)
    monkeypatch.setattr(split, "FRAGMENT_ROWS", 5)
    table = make(tmp_path, keyed=keyed)
    fill(table, keyed=keyed)
    table.compact()
    put(table, {3: "again", 200: "new"}, (8,) if keyed else ())
    put(table, dict.fromkeys(range(6, 40), "more"), (30, 31) if keyed else ())
    model = rows_of(table)
    done: list[tuple[int, int]] = []
    report = compact(
        table.core,
        engine=Pieces(3),
        cluster=cluster,
        rewrite=False,
        progress=lambda _kind, d, total: done.append((d, total)),
    )
    assert in_base(table) == rows_of(table) == model
    assert report.tasks == len(kinds) > 2
    assert max(done) == (len(kinds), len(kinds))
    if keyed:
        assert {"compact.tasks.hide_rows", "compact.tasks.write_rows"} == set(kinds)


def test_p5_few_keys_are_found_through_the_index_of_the_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pieces(LocalRunner):
        name = "pieces"

        def run(self, core: Any, tasks: Any, progress: Any) -> Any:
            kinds.extend(task["run"] for task in tasks)
            return super().run(core, tasks, progress)

    kinds: list[str] = []
    monkeypatch.setattr(fold, "INDEX_LOOKUP_ROWS_PER_KEY", 0)
    table = make(tmp_path)
    fill(table, keyed=True)
    table.compact()
    lance.dataset(table.uri).create_scalar_index("id", "BTREE")
    put(table, {3: "again", 200: "new"}, (8,))
    put(table, {3: "thrice", 6: "more"}, (30,))
    model = rows_of(table)
    compact(table.core, engine=Pieces(3))
    assert "compact.tasks.hide_indexed" in kinds
    assert "compact.tasks.hide_rows" not in kinds
    assert in_base(table) == rows_of(table) == model


def test_text_keys_are_sliced_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([pa.field("k", pa.utf8(), nullable=False), pa.field("v", pa.int32())])
    table = weir.create(str(tmp_path / "t"), schema, primary_key="k")
    monkeypatch.setattr(split, "SLICE_ROWS", 5)
    monkeypatch.setattr(split, "STREAMED_TEXTS", 5)
    for number in range(2):
        with table.writer() as writer:
            writer.put([{"k": f"k{i}", "v": number} for i in range(number * 5, 20)])
    report = table.compact()
    assert report.tasks > 2
    expected = sorted((f"k{i}", int(i >= 5)) for i in range(20))
    got = table.scan(freshness="base").to_table().to_pylist()
    assert sorted((r["k"], r["v"]) for r in got) == expected


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize("key", [("n",), ("s",), ("n", "s")])
def test_p5_a_piece_that_is_streamed_gives_the_same_rows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: tuple[str, ...],
    cluster: bool,
    indexed: bool,
) -> None:
    schema = pa.schema(
        [
            pa.field("n", pa.int64(), nullable=False),
            pa.field("s", pa.utf8(), nullable=False),
            pa.field("v", pa.int32()),
        ]
    )
    kinds: list[str] = []
    monkeypatch.setattr(split, "WHOLE_BYTES", 1)
    monkeypatch.setattr(fold, "INDEX_LOOKUP_ROWS_PER_KEY", 0 if indexed else 1 << 40)
    table = weir.create(str(tmp_path / "t"), schema, primary_key=key)
    model: dict[int, int] = {}
    for number, (first, end, gone) in enumerate([(0, 30, ()), (20, 50, (3, 40)), (5, 25, (21,))]):
        with table.writer() as writer:
            writer.put([{"n": i, "s": f"k{i}", "v": number} for i in range(first, end)])
            model.update(dict.fromkeys(range(first, end), number))
            for i in gone:
                writer.delete(pa.table({"n": [i], "s": [f"k{i}"]}).select(list(key)))
                del model[i]
        if number == 0:
            table.compact()
            if indexed:
                lance.dataset(table.uri).create_scalar_index(key[0], "BTREE")
    report = table.compact(cluster=cluster, progress=lambda kind, _done, _total: kinds.append(kind))
    assert {kind for kind in kinds if "tidying" not in kind} == {"compact.tasks.fold_streamed"}
    assert (report.rows_written, report.rows_deleted) == (43, 3)
    got = table.scan(freshness="base").to_table().to_pylist()
    assert sorted((r["n"], r["v"]) for r in got) == sorted(model.items())


def test_clustering_sorts_new_files_by_key(tmp_path: Path) -> None:
    table = make(tmp_path, buckets=1)
    put(table, dict.fromkeys((5, 3, 9, 1), "x"))
    table.compact(cluster=True)
    ids = [r["id"] for r in table.scan(freshness="base").to_table().to_pylist()]
    assert ids == [1, 3, 5, 9]


def test_indexes_cover_the_new_rows(tmp_path: Path) -> None:
    table = make(tmp_path)
    fill(table, keyed=True)
    table.compact()
    lance.dataset(table.uri).create_scalar_index("id", "BTREE")
    put(table, {500: "indexed"})
    table.compact()
    stats = lance.dataset(table.uri).stats.index_stats("id_idx")
    assert stats["num_unindexed_rows"] == 0
    assert table.get([500], freshness="base").num_rows == 1


def test_many_small_files_become_few(tmp_path: Path) -> None:
    table = make(tmp_path, buckets=1)
    for number in range(small_files() + 1):
        put(table, {number: "x"})
        table.compact(rewrite=False)
    assert len(table.core.lake.open_base().fragments()) > small_files()
    put(table, {999: "x"})
    table.compact()
    assert len(table.core.lake.open_base().fragments()) == 1


def test_files_of_mostly_deleted_rows_are_rewritten(tmp_path: Path) -> None:
    table = make(tmp_path, buckets=1)
    put(table, dict.fromkeys(range(100), "old"))
    table.compact()
    put(table, dict.fromkeys(range(10), "new"))
    table.compact()
    assert table.core.lake.open_base().deleted_rows() == 10, "not worth it"
    put(table, dict.fromkeys(range(10, 40), "new"))
    table.compact()
    assert table.core.lake.open_base().deleted_rows() == 0
    assert sorted(table.scan(freshness="base").to_table()["v"].to_pylist()) == (
        ["new"] * 40 + ["old"] * 60
    )


def small_files() -> int:
    from weir.upkeep.compact.tidying import SMALL_FRAGMENTS

    return SMALL_FRAGMENTS


def test_policy_names_the_reason(tmp_path: Path) -> None:
    table = make(tmp_path, buckets=1)
    quiet = CompactionPolicy(generations=3, bytes=1 << 30, age=None)
    assert quiet.due(table) is None
    put(table, {1: "a"})
    assert quiet.due(table) is None
    assert "bytes" in str(CompactionPolicy(bytes=1).due(table))
    assert "waited" in str(CompactionPolicy(age=0).due(table))
    put(table, {1: "b"})
    put(table, {1: "c"})
    assert "3 generations" in str(quiet.due(table))
    table.compact()
    assert quiet.due(table) is None


def test_policy_counts_the_entries_of_logs_that_are_folded(tmp_path: Path) -> None:
    config = weir.WriterConfig(enable_memtable=False)
    table = make(tmp_path, buckets=1, config=config)
    quiet = CompactionPolicy(age=None, entries=8)
    with table.writer() as writer:
        for number in range(3):
            writer.put([{"id": number, "v": "x"}])
        assert quiet.due(table) is None
        for number in range(6):
            writer.put([{"id": number, "v": "y"}])
    assert "log entries" in str(quiet.due(table))
    assert "waited" in str(CompactionPolicy(age=0).due(table))
    assert CompactionPolicy().due(table) is None
    table.compact()
    assert CompactionPolicy(age=0, entries=1).due(table) is None


# -- L-6: logs of WAL-only shards ------------------------------------------------------------------


def test_l6_logs_of_wal_only_tables_are_folded_directly(tmp_path: Path) -> None:
    table = make(tmp_path, config=SMALL)
    put(table, dict.fromkeys(range(20), "a"))
    put(table, dict.fromkeys(range(10, 30), "b"), (3, 25))
    model = rows_of(table)
    report = table.compact()
    assert report.wal_entries > 0
    assert in_base(table) == rows_of(table) == model
    assert model.total() == 28
    for shard in table.shards():
        manifest = shard.manifest()
        assert manifest.replay_after == shard.tailer().tip() == manifest.last_seen
        assert not manifest.sstables
    assert table.compact().job is None


def test_l6_a_live_wal_only_writer_goes_on(tmp_path: Path) -> None:
    table = make(tmp_path, buckets=1, config=SMALL)
    with table.writer() as writer:
        for number in range(10):
            writer.put([{"id": number * 3 + i, "v": "x"} for i in range(3)])
            report = compact(weir.open(table.uri).core)
            assert bool(report.wal_entries) == (number > 0), "the last entry stays (F-14)"
            assert not compact(weir.open(table.uri).core).wal_entries, "and is not folded again"
        writer.put([{"id": 0, "v": "last"}])
    assert rows_of(table)[0, "last"] == 1
    assert rows_of(table).total() == 30
    # A native or MemTable writer that replays later reads every entry after R and none before.
    with table.shard(0).writer(weir.WriterConfig()) as memtable:
        assert memtable.stats().replayed_rows == 4
    table.compact()
    assert in_base(table) == rows_of(table)


@pytest.mark.parametrize("mode", [True, False])
def test_l6_a_writer_that_claims_meanwhile_keeps_its_log(tmp_path: Path, mode: bool) -> None:
    table = make(tmp_path, buckets=1, config=WAL_ONLY)
    put(table, {1: "a", 2: "b"})
    kept = table.shard(0).manifest().replay_after
    config = weir.WriterConfig(enable_memtable=mode)

    def claims(now: str) -> None:
        if now == "committed":
            with weir.open(table.uri).shard(0).writer(config) as writer:
                writer.put([{"id": 2, "v": "newer"}])

    report = compact(watched(table.core, "compact", claims))
    assert any("claimed" in note for note in report.notes)
    assert mode or table.shard(0).manifest().replay_after == kept
    assert rows_of(table) == Counter({(1, "a"): 1, (2, "newer"): 1})
    table.compact()
    assert in_base(table) == rows_of(table) == Counter({(1, "a"): 1, (2, "newer"): 1})


def test_l6_append_only_logs_become_sstables_generation_by_generation(tmp_path: Path) -> None:
    table = make(tmp_path, keyed=False, buckets=1, config=SMALL)
    with table.writer() as writer:
        for number in range(7):
            writer.put([{"id": number, "v": str(i)} for i in range(3)])
        table.compact()
        # The generation the writer is filling stays in its log.
        assert in_base(table).total() == 18
        assert rows_of(table).total() == 21
        writer.put([{"id": 99, "v": "after"}])
    assert rows_of(weir.open(table.uri)).total() == 22
    with table.shard(0).writer(weir.WriterConfig()):
        pass  # replays and flushes what is left, and nothing else
    table.compact()
    assert in_base(table).total() == rows_of(table).total() == 22
    assert max(rows_of(table).values()) == 1


def test_l6_a_claim_leaves_only_an_orphan_of_an_append_only_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(tmp_path, keyed=False, buckets=1, config=SMALL)
    with table.writer() as writer:
        for number in range(4):
            writer.put([{"id": number, "v": str(i)} for i in range(3)])
    from weir.upkeep.compact import logs as compact_wal

    real = compact_wal.record_tokens

    def claims(*args: Any) -> None:
        with weir.open(table.uri).shard(0).writer(weir.WriterConfig()):
            pass
        real(*args)

    monkeypatch.setattr(compact_wal, "record_tokens", claims)
    report = table.compact()
    assert any("nothing was published" in note for note in report.notes)
    monkeypatch.undo()
    table.compact()
    assert in_base(table).total() == rows_of(table).total() == 12
    assert max(rows_of(table).values()) == 1


@pytest.mark.parametrize("keyed", [True, False])
def test_l6_a_memtable_writer_folded_under_by_force_stops_and_nothing_doubles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keyed: bool
) -> None:
    table = make(tmp_path, keyed=keyed, buckets=1)
    other = weir.open(table.uri)
    writer = table.shard(0).writer(weir.WriterConfig(max_memtable_rows=6))
    real = table.core.lake.write_sstable

    def folded_meanwhile(*args: Any, **more: Any) -> Any:
        compact(other.core, fold_wal=True)
        return real(*args, **more)

    monkeypatch.setattr(table.core.lake, "write_sstable", folded_meanwhile)
    for number in range(3):
        writer.put([{"id": number * 3 + i, "v": "x"} for i in range(3)])
    with pytest.raises(weir.WeirError, match=r"folded the log|was fenced"):
        writer.flush()
    writer.close()
    monkeypatch.undo()
    with table.shard(0).writer():
        pass
    table.compact()
    assert in_base(table) == rows_of(table) == Counter({(i, "x"): 1 for i in range(9)})


def test_l6_memtable_tables_keep_their_logs_unless_asked(tmp_path: Path) -> None:
    table = make(tmp_path, buckets=1)
    writer = table.shard(0).writer()
    writer.put([{"id": 1, "v": "x"}])
    assert compact(weir.open(table.uri).core).job is None
    writer.close()
    assert rows_of(table).total() == 1


@pytest.mark.parametrize("keyed", [True, False])
def test_p2_tokens_outlive_the_entries_that_compaction_passes(tmp_path: Path, keyed: bool) -> None:
    table = make(tmp_path, keyed=keyed, buckets=1, config=SMALL)
    for version in range(4):
        with table.shard(0).writer() as writer:
            assert writer.put_once(
                [{"id": i, "v": str(version)} for i in range(4)], app="stream", version=version
            )
    # As if the process had died between the entry and its record.
    for meta in list(table.core.store.list("_weir/shards")):
        if "/tokens/" in meta.path:
            table.core.store.delete([meta.path])
    table.compact()
    with table.shard(0).writer() as writer:
        assert not writer.put_once([{"id": 1, "v": "again"}], app="stream", version=2)
    assert (1, "again") not in rows_of(table)


def test_a_task_is_found_by_name_only(tmp_path: Path) -> None:
    table = make(tmp_path)
    with pytest.raises(weir.InvalidInput):
        run_task(table.core, {"run": "compact.tasks.winners"})
    with pytest.raises(weir.InvalidInput):
        run_task(table.core, {"run": "os.system"})
    named = {"fold_whole", "fold_streamed", "write_rows", "hide_rows", "hide_indexed"}
    assert set(compact_tasks.TASKS) == named

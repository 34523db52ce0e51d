"""`weir.due`: one place says which upkeep a table needs, and `perform` does it and records it."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from msgspec import structs

import weir
from tests.support.moments import again, at_time, make, put, rows
from weir.format import paths
from weir.format.manifest import ROW_BYTES, encode_manifest
from weir.records.keeping import FIRST_PAUSE, JOBS_MAX, LONGEST_PAUSE, TEXT_MAX, KeepRecords
from weir.table import Table
from weir.types import Version
from weir.upkeep.compact.jobs import Jobs
from weir.upkeep.due import look
from weir.upkeep.perform import JobReport, perform

EAGER = weir.KeepPolicy(gc=None)
NEVER = weir.KeepPolicy(compact=None, gc=None)
GC = weir.KeepPolicy(compact=None, gc="1h")


def jobs(table: Table, policy: weir.KeepPolicy) -> list[str]:
    return [job.key for job in weir.due(table, policy)]


def do(table: Table, policy: weir.KeepPolicy, which: str | None = None) -> list[JobReport]:
    """Do what is due."""
    core = table.core
    found = look(core, policy, core.store.now)
    due = [job for job in found if which in (None, job.key)]
    return [perform(core, job, policy, core.store.now) for job in due]


def record(table: Table) -> Any:
    return KeepRecords(table.core.store, table.core.env).latest()


def test_the_debt_counts_what_the_slowest_consumer_has_not_read(tmp_path: Path) -> None:
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, [1], "a")
        list(table.changes(consumer="quick"))
        list(table.changes(consumer="slow"))
        put(writer, [2], "a")
        put(writer, [3], "a")
        list(table.changes(consumer="quick"))
        assert weir.due(table).debt.unread == 2
    assert max(each.lag for each in table.stats().consumers) == 2
    table.compact()
    assert weir.due(table).debt.unread == 2, "folded or not, it has not read them"
    table.drop_consumer("slow")
    assert weir.due(table).debt.unread == 0


def test_a_new_table_needs_nothing(tmp_path: Path) -> None:
    found = weir.due(make(tmp_path / "t"))
    assert (list(found), bool(found), found.left, found.damaged) == ([], False, (), None)


def test_compaction_is_due_by_the_compaction_policy_with_its_reason(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    for n in range(2):
        with table.writer() as writer:
            put(writer, [n], "a")
    policy = weir.KeepPolicy(compact=weir.CompactionPolicy(generations=2), gc=None)
    (job,) = weir.due(table, policy)
    assert (job.job, job.reason) == ("compact", policy.compact and policy.compact.due(table))
    assert asyncio.run(weir.aio.due(weir.aio.Table(table), policy)) == weir.due(table, policy)
    assert jobs(table, NEVER) == []
    (done,) = do(table, policy)
    assert (done.result, done.rows) == ("succeeded", 2)
    assert jobs(table, policy) == []


def test_a_bound_of_age_says_since_when_it_is_due(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    with table.writer() as writer:
        put(writer, [1], "a")
    now = [table.core.store.now() + 3600]
    later = at_time(table, now)
    (job,) = weir.due(later, weir.KeepPolicy(compact=weir.CompactionPolicy(age="10m"), gc=None))
    assert job.since == pytest.approx(now[0] - 3000, abs=30)


def test_rows_of_another_program_are_added_to_indexes_without_anything_to_fold(
    tmp_path: Path,
) -> None:
    table = make(tmp_path / "t", shards=1)
    with table.writer() as writer:
        put(writer, range(10), "a")
    table.compact()
    table.create_index("v")
    assert jobs(table, EAGER) == []
    more = [{"id": key, "v": "b"} for key in range(100, 120)]
    schema = lance.dataset(table.uri).schema
    lance.write_dataset(pa.Table.from_pylist(more, schema=schema), table.uri, mode="append")
    table = again(table)
    (job,) = weir.due(table, EAGER)
    assert (job.job, job.reason) == ("compact", "indexes lack rows of the base: v_idx (20)")
    (done,) = do(table, EAGER)
    assert done.result == "succeeded"
    (index,) = again(table).indexes()
    assert (index.rows_indexed, index.rows_not_indexed) == (30, 0)
    assert jobs(table, EAGER) == []


def test_collection_is_due_at_an_interval_from_the_last_one(tmp_path: Path) -> None:
    now = [make(tmp_path / "t").core.store.now()]
    table = at_time(weir.open(tmp_path / "t"), now)
    assert jobs(table, GC) == []
    now[0] += 3601
    assert jobs(table, GC) == ["gc"]
    (done,) = do(table, GC)
    assert done.result == "succeeded"
    assert jobs(table, GC) == []
    now[0] += 3599
    assert jobs(table, GC) == []
    now[0] += 2
    (job,) = weir.due(table, GC)
    assert "3601 s ago" in job.reason


def test_checkpoints_are_due_by_the_newest_of_their_name(tmp_path: Path) -> None:
    now = [make(tmp_path / "t").core.store.now()]
    table = at_time(weir.open(tmp_path / "t"), now)
    hourly = weir.CheckpointSchedule("hourly", every="1h", keep="2d")
    policy = weir.KeepPolicy(compact=None, gc=None, checkpoints=[hourly])
    assert jobs(table, policy) == ["checkpoint hourly"]
    (done,) = do(table, policy)
    assert done.result == "succeeded"
    (made,) = table.checkpoints()
    assert (made.name, made.expires) == ("hourly", pytest.approx(now[0] + 2 * 86400, abs=5))
    assert jobs(table, policy) == []
    now[0] += 3601
    assert jobs(table, policy) == ["checkpoint hourly"]
    table.checkpoint(name="hourly")  # by whomever
    assert jobs(table, policy) == []


def test_expired_rows_make_compaction_due(tmp_path: Path) -> None:
    time = pa.field("ts", pa.timestamp("us"))
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), time])
    expire = weir.Expire("ts", after="1h")
    made = weir.create(tmp_path / "t", schema, primary_key="id", expire=expire)
    now = [made.core.store.now()]
    table = at_time(made, now)
    policy = weir.KeepPolicy(drop_expired="1d", gc=None)
    assert jobs(table, policy) == []
    now[0] += 86401
    assert [job.reason for job in weir.due(table, policy)] == ["expired rows are to be dropped"]
    do(table, policy)
    assert jobs(table, policy) == []


def test_l6_a_living_writer_is_not_fenced_unless_the_policy_says_so(tmp_path: Path) -> None:
    now = [make(tmp_path / "t").core.store.now()]
    table = at_time(weir.open(tmp_path / "t"), now)
    writer = table.writer()
    put(writer, [1, 2], "a")
    now[0] += 700  # more than twice max_memtable_age: the writer has probably died
    quiet = weir.due(table, NEVER)
    assert not quiet
    assert "written nothing for 70" in quiet.left[0]
    policy = weir.KeepPolicy(compact=None, gc=None, take_over="1h")
    assert jobs(table, policy) == []
    put(writer, [3], "a")  # it lives
    now[0] = table.core.store._inner.now() + 3599
    assert jobs(table, policy) == []
    now[0] += 10
    assert jobs(table, policy) == ["flush"]
    assert weir.due(table, policy).left == ()
    (done,) = do(table, policy)
    assert (done.result, done.rows) == ("succeeded", 3)
    assert table.stats().lag == 0
    with pytest.raises(weir.FencedError):
        put(writer, [4], "a")
    writer.close()
    assert rows(table) == {1: "a", 2: "a", 3: "a"}


def test_l6_a_keeper_that_slept_does_not_fence_the_writer_that_came_since(tmp_path: Path) -> None:
    now = [make(tmp_path / "t", shards=1).core.store.now()]
    table = at_time(weir.open(tmp_path / "t"), now)
    put(table.writer(), [1], "a")  # and dies
    now[0] += 3700
    policy = weir.KeepPolicy(compact=None, gc=None, take_over="1h")
    planned = look(table.core, policy, table.core.store.now)
    assert [job.key for job in planned] == ["flush"]
    with weir.open(tmp_path / "t").writer() as writer:
        put(writer, [2], "b")
        (job,) = planned
        done = perform(table.core, job, policy, table.core.store.now)
        assert (done.result, done.rows) == ("succeeded", 0)
        put(writer, [3], "b")
    assert rows(table) == {1: "a", 2: "b", 3: "b"}


def test_a_healthy_writer_is_no_news(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    with table.writer() as writer:
        put(writer, [1], "a")
        assert weir.due(table, NEVER).left == ()


def test_a_failure_is_recorded_and_tried_again_after_a_growing_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [make(tmp_path / "t").core.store.now()]
    table = at_time(weir.open(tmp_path / "t"), now)
    now[0] += 3601

    def fails(*_: Any, **__: Any) -> Any:
        raise weir.StoreError("no route to the store")

    with monkeypatch.context() as broken:
        broken.setattr("weir.upkeep.perform.gc", fails)
        pauses = []
        for attempt in range(9):
            (done,) = do(table, GC)
            assert (done.result, done.said) == ("failed", "no route to the store")
            assert done.next_try is not None
            outcome = record(table).of("gc")
            assert outcome.failures == attempt + 1
            pauses.append(done.next_try - now[0])
            (job,) = weir.due(table, GC)
            assert job.not_before == done.next_try
            assert job.since == pytest.approx(outcome.due_since, abs=10)
            now[0] = done.next_try
            (job,) = weir.due(table, GC)
            assert job.not_before is None
    assert FIRST_PAUSE / 2 <= pauses[0] <= FIRST_PAUSE
    assert LONGEST_PAUSE / 2 <= pauses[-1] <= LONGEST_PAUSE
    (done,) = do(table, GC)
    assert done.result == "succeeded"
    assert record(table).of("gc").failures == 0


def test_another_compactors_claim_is_no_failure(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    with table.writer() as writer:
        put(writer, [1], "a")
    soon = weir.KeepPolicy(compact=weir.CompactionPolicy(generations=1), gc=None)
    jobs_of_table = Jobs(table.core.store)
    jobs_of_table.claim("another", jobs_of_table.latest())
    (done,) = do(table, soon)
    assert done.result == "waits"
    assert "another compaction claimed the table" in done.said
    outcome = record(table).of("compact")
    assert outcome.due_since
    assert outcome.failures == 0
    before = record(table).seq
    do(table, soon)
    assert record(table).seq == before, "written once, not at every look"


def test_a_damaged_table_is_left_alone_until_somebody_says_otherwise(tmp_path: Path) -> None:
    table = make(tmp_path / "t", shards=1)
    with table.writer() as writer:
        put(writer, [1], "a")
    soon = weir.KeepPolicy(compact=weir.CompactionPolicy(generations=1), gc=None)
    (shard,) = table.shards()
    name = shard.manifest().sstables[0].path
    folder = Path(table.uri) / paths.sstable_dir(shard.id, name)
    for path in folder.rglob("*.lance"):
        path.unlink()
    other = weir.open(table.uri)
    (done,) = do(other, soon)
    assert done.result == "damaged", done.said
    found = weir.due(table, soon)
    assert (list(found), found.damaged) == ([], record(table).damaged)
    KeepRecords(table.core.store, table.core.env).forget()
    assert jobs(table, soon) == ["compact"]


def test_a_dropped_table_is_gone_and_gets_no_record(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    with table.writer() as writer:
        put(writer, [1], "a")
    soon = weir.KeepPolicy(compact=weir.CompactionPolicy(generations=1), gc=None)
    found = look(table.core, soon, table.core.store.now)
    weir.drop(table.uri)
    done = perform(table.core, found.jobs[0], soon, table.core.store.now)
    assert done.result == "gone"
    assert not (Path(table.uri) / paths.keep_chain()).exists()


def test_the_record_stays_small(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    kept = KeepRecords(table.core.store, table.core.env)
    for n in range(100):
        kept.failed(f"checkpoint {n}", float(n), "x" * 10_000)
    found = kept.latest()
    assert len(found.jobs) == JOBS_MAX
    assert found.of("checkpoint 99").failures == 1
    assert found.of("checkpoint 1").failures == 0
    assert all(len(each.reason) == TEXT_MAX for each in found.jobs)
    chain = list((Path(table.uri) / paths.keep_chain()).iterdir())
    assert len(chain) < 70


@pytest.mark.parametrize(
    "settings",
    [
        {"gc": "soon"},
        {"take_over": -1},
        {"min_age": "8d"},
        {"silent_after": "x"},
        {"silent_after": None},
        {"compact": "1h"},
        {"checkpoints": [{"name": "daily"}]},
    ],
    ids=str,
)
def test_a_policy_is_checked_when_it_is_made(settings: dict[str, Any]) -> None:
    with pytest.raises(weir.InvalidInput, match=next(iter(settings))):
        weir.KeepPolicy(**settings)


@pytest.mark.parametrize(
    "settings", [{"generations": 0}, {"bytes": "1G"}, {"age": "soon"}], ids=str
)
def test_bounds_of_compaction_are_checked_when_they_are_made(settings: dict[str, Any]) -> None:
    with pytest.raises(weir.InvalidInput, match=f"CompactionPolicy.{next(iter(settings))}"):
        weir.CompactionPolicy(**settings)


def test_something_that_is_no_policy_is_refused(tmp_path: Path) -> None:
    given: Any = {"gc": "1h"}
    table = make(tmp_path / "t")
    with pytest.raises(weir.InvalidInput, match=r"expected a weir\.KeepPolicy"):
        weir.due(table, given)


def test_what_waits_is_measured_alike_by_due_and_by_stats(tmp_path: Path) -> None:
    """Also in an SSTable of another program, which recorded its rows and not its bytes."""
    table = make(tmp_path / "t", 1)
    with table.writer() as writer:
        put(writer, [1, 2, 3], "a")
    shard = table.shards()[0]
    latest = shard.manifest()
    (flushed,) = latest.sstables
    foreign = replace(
        latest,
        version=Version(latest.version + 1),
        sstables=(structs.replace(flushed, in_memory_bytes=None),),
    )
    path = paths.manifest_path(shard.id, foreign.version)
    table.core.store.put_if_absent(path, encode_manifest(foreign))
    table = weir.open(table.uri)
    (one,) = table.stats().shards
    debt = weir.due(table, NEVER).debt
    assert (one.generations, one.lag) == (debt.generations, debt.entries) == (1, 0)
    assert one.sstable_bytes == debt.nbytes == 3 * ROW_BYTES

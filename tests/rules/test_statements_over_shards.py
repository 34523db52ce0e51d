"""P-8: a statement over several shards beside everything else. The deaths are in tests/crash."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import weir
from simulator.steps import Died
from tests.crash.test_statement_deaths import AFTER, BEFORE, KEYS, SCHEMA, make, rows_of, update
from tests.support.tables import count_requests, load_rows
from weir.env import Env
from weir.errors import CommitConflict, NotAWeirTable, WeirError
from weir.format import paths
from weir.log.floors import Floors
from weir.read import snapshot as snapshots
from weir.records.cut import ShardCut
from weir.records.statements import StatementRecords
from weir.routing import statements
from weir.routing.core import Core
from weir.shard.writer import ShardWriter
from weir.spark import deciding
from weir.spark.reading import stream_reader
from weir.spark.snapshots import RoutedSnapshot
from weir.spark.types import spark_schema
from weir.upkeep import pinning
from weir.upkeep.gc import collect

STEPS = ["proposed", "marked", "checked", "decided", "piece"]


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "PATIENCE_SECONDS", 0.0)


@pytest.fixture
def table(tmp_path: Path) -> weir.Table:
    return make(str(tmp_path / "t"))


def at(table: weir.Table, step: str, act: Callable[[], object]) -> weir.Table:
    """The table as a driver has it, and `act` is called when a statement of it reaches a step."""
    done: list[str] = []

    def reached(name: str) -> None:
        if name == f"statement.{step}" and not done:
            done.append(name)
            act()

    return weir.open(table.uri, env=Env(failpoint=reached))


def open_statements(table: weir.Table) -> int:
    return len(StatementRecords(table.core.store, table.core.env).load().open)


def shard_of(table: weir.Table, key: int) -> UUID:
    ((value, _),) = table.core.router.split(pa.RecordBatch.from_pylist([{"id": key}]))
    return table.core.route(value)


def put_natively(table: weir.Table, row: dict[str, int], *, flush: bool = False) -> None:
    """As a program that knows nothing of statements: claim, replay, write."""
    core = weir.open(table.uri).core
    site = core.log(shard_of(table, row["id"])).current_site()
    with ShardWriter.open(site, schema=core.schema(), lake=core.lake) as writer:
        writer.put([row])
        if flush:
            writer.put([row])  # the entry before is below R, so gc could collect it
            writer.flush()


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("step", ["checked", "decided"])
def test_p8_a_later_row_of_a_native_program_wins_and_the_rest_of_the_statement_counts(
    table: weir.Table, step: str, flush: bool
) -> None:
    later = {"id": 3, "n": 50}
    expected = AFTER | {3: 50}
    shown: list[dict[int, int]] = []

    def native() -> None:
        put_natively(table, later, flush=flush)
        shown.append(rows_of(weir.open(table.uri)))

    update(at(table, step, native))
    assert shown == [expected if step == "decided" else BEFORE | {3: 50}]
    assert rows_of(weir.open(table.uri)) == expected
    assert not open_statements(table)


@pytest.mark.parametrize("step", ["proposed", "marked", "checked"])
def test_p8_a_writer_that_looks_aborts_an_undecided_statement_which_then_sees_its_row(
    table: weir.Table, step: str
) -> None:
    def look() -> None:
        with weir.open(table.uri).writer() as writer:
            writer.update([{"id": key, "n": 5} for key in KEYS])

    with pytest.raises(CommitConflict, match="was written after"):
        update(at(table, step, look))
    assert rows_of(weir.open(table.uri)) == dict.fromkeys(KEYS, 5)
    assert not open_statements(table)


def test_p8_a_writer_that_looks_sees_a_decided_statement(table: weir.Table) -> None:
    def look() -> None:
        with weir.open(table.uri).writer() as writer:
            writer.update([{"id": key, "n": 5} for key in AFTER])

    update(at(table, "decided", look))
    assert rows_of(weir.open(table.uri)) == dict.fromkeys(AFTER, 5)
    assert not open_statements(table)


def test_p8_a_statement_that_was_aborted_for_rows_of_others_is_proposed_again(
    table: weir.Table,
) -> None:
    def beside() -> None:
        with weir.open(table.uri).writer() as writer:
            writer.insert([{"id": 500 + key, "n": 7} for key in KEYS])

    update(at(table, "checked", beside))
    assert rows_of(weir.open(table.uri)) == AFTER | {500 + key: 7 for key in KEYS}


@pytest.mark.parametrize("step", STEPS)
def test_p8_of_two_statements_that_read_the_same_one_counts(table: weir.Table, step: str) -> None:
    read = RoutedSnapshot.take(table)
    lost: list[CommitConflict] = []

    def second() -> None:
        try:
            update(weir.open(table.uri), read=read)
        except CommitConflict as conflict:
            lost.append(conflict)

    try:
        update(at(table, step, second), read=read)
    except CommitConflict as conflict:
        lost.append(conflict)
    assert len(lost) == 1
    assert rows_of(weir.open(table.uri)) == AFTER
    assert not open_statements(table)


def test_p8_a_reader_beside_statements_never_sees_a_half(table: weir.Table) -> None:
    over = threading.Event()
    wrong: list[dict[int, int]] = []

    def read(reader: weir.Table) -> None:
        while not over.is_set():
            found = rows_of(reader)
            generations = {key // 100 for key in found}
            if (
                len(generations) != 1
                or len(found) != len(KEYS)
                or set(found.values()) != {next(iter(generations))}
            ):
                wrong.append(found)

    readers = [threading.Thread(target=read, args=(weir.open(table.uri),)) for _ in range(2)]
    for thread in readers:
        thread.start()
    try:
        for turn in range(1, 6):
            update(weir.open(table.uri), below=100 * turn)
            if turn % 2:
                weir.open(table.uri).gc(min_age=0)
    finally:
        over.set()
        for thread in readers:
            thread.join()
    assert not wrong
    assert rows_of(weir.open(table.uri)) == {key + 500: 5 for key in KEYS}


@pytest.mark.parametrize("ends_at", ["applied", "closed"])
def test_p8_a_read_starts_over_if_a_statement_was_written_between_two_of_its_shards(
    table: weir.Table, monkeypatch: pytest.MonkeyPatch, ends_at: str
) -> None:
    reader, walk = weir.open(table.uri), snapshots._walk
    begun: list[bool] = []

    def walked(core: Core, shard: UUID, *, tail: bool) -> object:
        found = walk(core, shard, tail=tail)
        if core is reader.core and not begun:
            begun.append(True)
            with monkeypatch.context() as patch:
                if ends_at == "applied":  # its driver dies before it records that
                    patch.setattr(deciding, "close", lambda core, one: None)
                update(weir.open(table.uri))
        return found

    monkeypatch.setattr(snapshots, "_walk", walked)
    assert rows_of(reader) == AFTER
    assert begun


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "act",
    [
        lambda table: table.gc(min_age=0),
        lambda table: table.compact(),
        lambda table: table.checkpoint("all"),
        lambda table: table.checkpoint("durable"),
    ],
    ids=["gc", "compact", "checkpoint", "durable checkpoint"],
)
def test_p8_upkeep_in_the_middle_leaves_a_statement_whole(
    table: weir.Table, step: str, act: Callable[[weir.Table], object]
) -> None:
    kept: list[object] = []
    update(at(table, step, lambda: kept.append(act(weir.open(table.uri)))))
    assert rows_of(weir.open(table.uri)) == AFTER
    if isinstance(kept[0], weir.Checkpoint):
        found = weir.open(table.uri).scan(checkpoint=kept[0]).to_table().to_pylist()
        pinned = {row["id"]: row["n"] for row in found}
        assert pinned == (AFTER if step in ("decided", "piece") else BEFORE)
    assert not open_statements(table)


def test_p8_a_checkpoint_is_taken_again_if_a_statement_came_between_two_pins(
    table: weir.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker, pin = weir.open(table.uri), pinning._durable_pin
    begun: list[bool] = []

    def pinned(core: Core, shard: UUID) -> ShardCut | None:
        found = pin(core, shard)
        if not begun:
            begun.append(True)
            update(weir.open(table.uri))
        return found

    monkeypatch.setattr(pinning, "_durable_pin", pinned)
    kept = maker.checkpoint("durable")
    rows = weir.open(table.uri).scan(checkpoint=kept).to_table().to_pylist()
    assert {row["id"]: row["n"] for row in rows} == AFTER


@pytest.mark.parametrize("step", STEPS)
def test_p8_a_restore_in_the_middle_ends_a_statement_for_good(table: weir.Table, step: str) -> None:
    kept = table.checkpoint("all")
    driver = at(table, step, lambda: weir.open(table.uri).restore(kept))
    if step in ("decided", "piece"):
        update(driver)
    else:
        with pytest.raises(CommitConflict, match="restored"):
            update(driver)
    assert rows_of(weir.open(table.uri)) == BEFORE
    assert not open_statements(table)


def test_p8_a_statement_that_was_decided_after_the_way_back_was_made_is_restored_away(
    table: weir.Table,
) -> None:
    kept = table.checkpoint("all")

    def beside(step: str) -> None:
        if step == "restore.begun":
            with pytest.raises(Died):
                update(at(table, "decided", die))

    weir.open(table.uri, env=Env(failpoint=beside)).restore(kept)
    assert rows_of(weir.open(table.uri)) == BEFORE
    assert not open_statements(table)


@pytest.mark.parametrize("step", STEPS)
def test_p8_a_reshard_in_the_middle_is_a_conflict_or_finds_a_whole_statement(
    table: weir.Table, step: str
) -> None:
    driver = at(table, step, lambda: weir.open(table.uri).reshard(weir.Bucket("id", 3)))
    if step in ("decided", "piece"):
        update(driver)
    else:
        with pytest.raises(CommitConflict, match="resharded"):
            update(driver)
    assert rows_of(weir.open(table.uri)) == (AFTER if step in ("decided", "piece") else BEFORE)
    assert not open_statements(table)


@pytest.mark.parametrize("step", STEPS)
def test_p8_a_drop_in_the_middle_leaves_nothing_to_the_next_table(
    tmp_path: Path, table: weir.Table, step: str
) -> None:
    driver = at(table, step, lambda: weir.drop(table.uri))
    try:
        update(driver)
    except WeirError as gone:
        assert isinstance(gone, NotAWeirTable | CommitConflict), gone  # noqa: PT017
    again = make(table.uri)
    assert rows_of(weir.open(table.uri)) == BEFORE
    update(weir.open(again.uri))
    assert rows_of(weir.open(table.uri)) == AFTER


def die() -> None:
    raise Died


def test_p8_gc_keeps_what_tells_which_rows_of_a_statement_count(
    table: weir.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Died):
        update(at(table, "decided", die))
    put_natively(table, {"id": 3, "n": 50}, flush=True)
    monkeypatch.setattr(collect, "finish", lambda core: None)  # cannot reach a store, say
    monkeypatch.setattr("weir.upkeep.gc.records.LEFTOVERS", {"_weir/staging": 0.0})
    report = weir.open(table.uri).gc(min_age=0, fence_retention="10m")
    assert not report.errors
    assert rows_of(weir.open(table.uri)) == AFTER | {3: 50}
    monkeypatch.undo()
    weir.open(table.uri).gc(min_age=0)
    assert rows_of(weir.open(table.uri)) == AFTER | {3: 50}
    assert not open_statements(table)


def test_p8_a_statement_of_rows_that_were_staged_a_day_ago_is_refused(
    table: weir.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.records.statements.STAGED_SECONDS_MAX", -1.0)
    with pytest.raises(CommitConflict, match="almost a day ago"):
        update(weir.open(table.uri))
    assert rows_of(weir.open(table.uri)) == BEFORE
    assert not open_statements(table)


def test_p8_what_fails_after_the_decision_is_no_failure(table: weir.Table) -> None:
    """The statement is in the table for every read; the next writer of a shard puts it there."""

    def broken() -> None:
        raise CommitConflict("the store went away")

    update(at(table, "piece", broken))
    assert rows_of(weir.open(table.uri)) == AFTER


def test_p8_a_mark_that_nobody_closed_is_closed_by_the_next_owner(table: weir.Table) -> None:
    with pytest.raises(Died):
        update(at(table, "marked", die))
    for shard in table.shards():
        assert Floors(shard.site).load().statement % 2 == 0
        shard.writer().close()
        assert Floors(shard.site).load().statement % 2 == 1
    assert not open_statements(table)


def costs(uri: str) -> dict[str, int]:
    """Requests of a handle that has read before: a read, opening a shard, a put."""
    weir.open(uri).checkpoint("all")  # nothing is left to replay
    table = weir.open(uri)
    store = count_requests(table)
    found = {}
    for _ in range(3):
        store.reset()
        table.count()
        found["read"] = store.requests
    store.reset()
    with table.shards()[0].writer() as writer:
        found["open"] = store.requests
        store.reset()
        key = next(k for k in range(1000, 2000) if shard_of(table, k) == writer.site.shard)
        writer.put([{"id": key, "n": 0}])
        found["put"] = store.requests
    return found


@pytest.mark.parametrize("step", ["decided", "piece"])
def test_p3_p8_a_feed_that_begins_in_the_middle_shows_no_row_twice(
    table: weir.Table, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Spark's begins with the rows of now, and a decided statement's are among them."""
    monkeypatch.setattr("weir.spark.feed.POLL", -1.0)  # looks at the table at every call
    begun: list[tuple[Any, Any, Any]] = []

    def begin() -> None:
        feed = stream_reader({"path": table.uri, "deletes": "skip"}, spark_schema(table.schema))
        start = feed.initialOffset()
        begun.append((feed, start, feed.latestOffset(start, ReadAllAvailable())))

    update(at(table, step, begin))
    ((feed, start, end),) = begun
    then = feed.latestOffset(end, ReadAllAvailable())
    parts = [*feed.partitions(start, end), *feed.partitions(end, then)]
    rows = [row for part in parts for batch in feed.read(part) for row in batch.to_pylist()]
    assert sorted(row["id"] for row in rows) == sorted(AFTER)


@pytest.mark.parametrize("buckets", [1, 4])
def test_p7_p8_a_statement_reads_what_its_tasks_staged_once(tmp_path: Path, buckets: int) -> None:
    table = make(str(tmp_path / "t"), buckets)
    store = count_requests(table)
    update(table)
    staged = {path: count for path, count in store.got.items() if path.startswith(paths.STAGING)}
    assert len(staged) == buckets
    assert set(staged.values()) == {1}
    assert rows_of(weir.open(table.uri)) == AFTER


def test_p8_reads_and_writers_pay_nothing_for_statements_that_are_over(table: weir.Table) -> None:
    costs(table.uri)
    before = costs(table.uri)
    update(weir.open(table.uri))
    assert open_statements(table) == 0
    assert costs(table.uri) == before


def test_p8_an_overwrite_replaces_a_statement_beside_it_whole_or_not_at_all(
    table: weir.Table,
) -> None:
    """One shard has rows in its log: the overwrite claims it, and so settles the statement there.
    The others have none."""
    table.compact(fold_wal=True)
    with table.writer(weir.WriterConfig(enable_memtable=False)) as writer:
        writer.put([{"id": 0, "n": 0}])
    begun: list[str] = []

    def beside(name: str) -> None:
        if name == "compact.claimed" and not begun:
            begun.append(name)
            with contextlib.suppress(Died):
                update(at(table, "decided", die))

    loader = weir.open(table.uri, env=Env(failpoint=beside))
    load_rows(loader, {500: None}, replaces=True)
    assert begun
    assert rows_of(weir.open(table.uri)) in ({500: None}, {500: None} | AFTER)
    weir.open(table.uri).gc(min_age=0)
    assert rows_of(weir.open(table.uri)) in ({500: None}, {500: None} | AFTER)
    assert not open_statements(table)


def drop_column(table: weir.Table) -> None:
    table.drop_columns("n")


def rename_column(table: weir.Table) -> None:
    table.rename_column("n", "m")


def make_column_anew(table: weir.Table) -> None:
    table.drop_columns("n")
    table.add_columns(pa.field("n", pa.string()))


@pytest.mark.parametrize(
    ("change", "last", "value"),
    [(drop_column, "id", None), (rename_column, "m", 1), (make_column_anew, "n", None)],
)
def test_p8_a_statement_whose_driver_died_is_put_into_the_columns_of_now(
    table: weir.Table, change: Callable[[weir.Table], None], last: str, value: object
) -> None:
    with pytest.raises(Died):
        update(at(table, "decided", die))
    change(weir.open(table.uri))
    columns = ["id"] if last == "id" else ["id", last]
    expected = [{"id": key, last: value} if last != "id" else {"id": key} for key in AFTER]

    def rows() -> list[dict[str, object]]:
        found = weir.open(table.uri).scan(columns).to_table()
        return found.sort_by("id").to_pylist()

    assert rows() == expected
    report = weir.open(table.uri).gc(min_age=0)
    assert not report.errors
    assert not open_statements(table)
    with weir.open(table.uri).writer() as writer:
        writer.put([{"id": 0}])
        writer.delete([0])
    assert rows() == expected


def test_p8_a_search_by_vector_beside_a_statement_of_which_no_row_is_left(tmp_path: Path) -> None:
    """Others have written all rows of a piece again: that level of the search is empty."""
    schema = pa.schema([*SCHEMA, pa.field("vec", pa.list_(pa.float32(), 2))])
    place = str(tmp_path / "v")
    table = weir.create(place, schema, primary_key="id", sharding=weir.Bucket("id", 4))
    old = [{"id": key, "n": 0, "vec": [0.0, 1.0]} for key in KEYS]
    with table.writer() as writer:
        writer.put(old)
    with pytest.raises(Died):
        update(at(table, "decided", die))
    later = [*old, *(row | {"id": row["id"] + 100} for row in old)]
    core = weir.open(place).core
    for shard in {shard_of(table, row["id"]) for row in later}:
        site = core.log(shard).current_site()
        with ShardWriter.open(site, schema=core.schema(), lake=core.lake) as native:
            native.put([row for row in later if shard_of(table, row["id"]) == shard])
    for metric in ("l2", "dot", "cosine"):
        found = weir.open(place).search("vec", [0.0, 1.0], k=100, metric=metric)
        assert sorted(found["id"].to_pylist()) == sorted(row["id"] for row in later)

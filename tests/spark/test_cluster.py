"""P-1, P-5: a real cluster, executors killed midway, speculation forced."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import weir
import weir.spark
from tests.support.cluster import Cluster
from tests.support.slow_tasks import await_reached, close_gate, open_gate, slow_rows
from tests.support.spark import built_jar, in_frame, in_weir, make_table, once, put
from tests.support.stores import StoreKind
from weir.spark.layout import layout_of

pytestmark = [pytest.mark.cluster, pytest.mark.kill, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def session(cluster: Cluster) -> Iterator[SparkSession]:
    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()  # one JVM has one context, so the suite's local session must stop
    session = cluster.session(**{"spark.executorEnv.PYTHONPATH": str(Path.cwd())})
    yield session
    session.stop()


def meanwhile(job: Callable[[], Any], disturb: Callable[[], None]) -> Any:
    """Run `job` in a thread and `disturb` beside it; return the job's result."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(job())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    disturber = threading.Thread(target=disturb, daemon=True)
    disturber.start()
    thread.join()
    if errors:
        raise errors[0]
    disturber.join()
    return results[0]


@pytest.mark.parametrize(
    ("keyed", "kill", "large"),
    [
        (True, True, False),  # a key hides duplicate rows, so the other cases prove more
        (False, True, False),
        (False, False, False),
        (False, True, True),
        (False, False, True),
    ],
)
def test_p1_a_write_survives_kill_and_speculation(
    cluster: Cluster, session: SparkSession, tmp_path: Path, keyed: bool, kill: bool, large: bool
) -> None:
    """The first attempt waits in the middle of its rows; another attempt overtakes it, or it dies.

    `large`: the rows of a task are too many for one log entry.
    """
    table = make_table(tmp_path, keyed=keyed, buckets=2)
    rows = dict.fromkeys(range(200), "x")
    close_gate(tmp_path, "write")
    df = session.range(200).selectExpr("id", "'x' AS v")
    spread, how = weir.spark.layout(df, table.uri)
    slow = spread.mapInArrow(slow_rows(str(tmp_path), "write", after=5 * large), spread.schema)
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10" if large else "10000")

    def write() -> None:
        session.createDataFrame([], "nothing int")  # the active session of this thread
        writer = slow.write.format("weir").mode("append").option("layout", how)
        if large:
            writer = writer.option("maxEntryBytes", "300")
        writer.option("appId", "job").option("txnVersion", "1").save(table.uri)

    def disturb() -> None:
        await_reached(tmp_path, "write")
        if kill:
            cluster.kill_executor(session)
            open_gate(tmp_path, "write")
        # Without a kill the gate stays shut: speculation must finish the job.

    meanwhile(write, disturb)
    open_gate(tmp_path, "write")
    assert in_weir(table) == once(rows)
    write()  # a whole second run of the job changes nothing
    assert in_weir(table) == once(rows)
    assert layout_of(table) is not None
    if large:
        assert all(len(shard.manifest().sstables) > 1 for shard in table.shards())


@pytest.mark.parametrize(
    ("keyed", "store_kind"), [(True, "s3"), (False, "local")], indirect=["store_kind"]
)
def test_p5_compaction_survives_a_killed_executor(
    cluster: Cluster,
    session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keyed: bool,
    store_kind: StoreKind,
) -> None:
    from weir.spark import runner

    keys = store_kind.storage_options
    table = make_table(store_kind.uri_factory(), keyed=keyed, buckets=2, storage_options=keys)
    put(table, dict.fromkeys(range(100), "base"))
    table.compact()
    put(table, dict.fromkeys(range(50, 150), "one"), (3, 60) if keyed else ())
    put(table, dict.fromkeys(range(0, 200, 7), "two"), (7,) if keyed else ())
    model = in_weir(table)
    close_gate(tmp_path, "compact")
    real = runner._task_function
    folder = str(tmp_path)

    def gated(*arguments: Any) -> Any:
        work = real(*arguments)
        wait = slow_rows(folder, "compact")

        def run(batches: Any) -> Any:
            yield from work(wait(batches))

        return run

    monkeypatch.setattr(runner, "_task_function", gated)

    def disturb() -> None:
        await_reached(tmp_path, "compact")
        cluster.kill_executor(session)
        open_gate(tmp_path, "compact")

    report = meanwhile(
        lambda: weir.spark.compact(session, table.uri, engine="spark", storage_options=keys),
        disturb,
    )
    assert report.tasks >= 2
    assert in_weir(table, freshness="base") == in_weir(table) == model
    reach = {f"storage.{name}": value for name, value in keys.items()}
    assert in_frame(session.read.format("weir").options(**reach).load(table.uri)) == model


def test_p2_p3_streams_survive_a_killed_executor(
    cluster: Cluster, session: SparkSession, tmp_path: Path
) -> None:
    """From one append-only table's feed into another; source and sink each lose an executor."""
    source = make_table(tmp_path, keyed=False, buckets=2)
    copy = make_table(tmp_path, keyed=False, buckets=2)
    put(source, dict.fromkeys(range(100), "a"))
    put(source, dict.fromkeys(range(100, 200), "b"))
    close_gate(tmp_path, "stream")
    feed = weir.spark.changes(session, source.uri, options={"maxEntriesPerTrigger": "2"})
    slow = feed.mapInArrow(slow_rows(str(tmp_path), "stream"), feed.schema)

    def run() -> None:
        session.createDataFrame([], "nothing int")  # the active session of this thread
        query = (
            slow.writeStream.format("weir")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(copy.uri)
        )
        query.awaitTermination()

    def disturb() -> None:
        await_reached(tmp_path, "stream")
        cluster.kill_executor(session)
        open_gate(tmp_path, "stream")

    meanwhile(run, disturb)
    assert in_weir(copy) == in_weir(source)


def test_tables_have_names_on_a_cluster(session: SparkSession, tmp_path: Path) -> None:
    """The catalog's classes reach executors that started before them."""
    built_jar()
    weir.spark.register(session, catalog="house", root=str(tmp_path))
    session.sql(
        "CREATE TABLE house.db.t (id BIGINT NOT NULL, v STRING, PRIMARY KEY (id))"
        " CLUSTERED BY (id) INTO 2 BUCKETS"
    )
    session.sql("INSERT INTO house.db.t SELECT id, 'a' FROM range(20)")
    session.sql(
        "MERGE INTO house.db.t t USING (SELECT id, 'b' AS v FROM range(10, 30)) s ON t.id = s.id"
        " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    session.sql("DELETE FROM house.db.t WHERE id = 0")
    expected = {k: "a" if k < 10 else "b" for k in range(1, 30)}
    assert in_frame(session.table("house.db.t")) == once(expected)
    assert in_weir(weir.open(f"{tmp_path}/db/t.lance")) == once(expected)

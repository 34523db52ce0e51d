"""`weir keep` as a person runs it, and an event pipeline that is kept by it."""

import signal
import threading
from pathlib import Path

import pytest

import weir
from tests.cli.conftest import SCHEMA
from weir.records.keeping import KeepRecords


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "keep.toml"
    path.write_text('[defaults]\ncompact = { generations = 1 }\ngc = "0s"\n')
    return path


def test_a_prefix_is_kept_once_and_shown(run, table, tmp_path, policy):
    dry = run("keep", tmp_path, "--policy", policy, "--once", "--dry-run", "--json")
    assert dry.status == 0
    assert [(line["job"], line["result"]) for line in dry.lines()] == [
        ("compact", "due"), ("gc", "due"),
    ]  # fmt: skip
    assert table.stats().generations
    ran = run("keep", tmp_path, "--policy", policy, "--once", "--json")
    assert ran.status == 0
    assert [(line["job"], line["result"]) for line in ran.lines()] == [
        ("compact", "succeeded"), ("gc", "succeeded"),
    ]  # fmt: skip
    assert table.stats().generations == 0
    shown = run("keep", "status", tmp_path, "--json").json()
    assert [(job["job"], job["status"]) for job in shown] == [
        ("compact", "succeeded"), ("gc", "succeeded"),
    ]  # fmt: skip
    text = run("keep", "status", tmp_path).out
    assert "succeeded" in text
    assert "UTC" in text


def test_a_large_compaction_runs_on_spark_and_a_small_one_here(
    run, table, tmp_path, policy, monkeypatch
):
    from weir.cli import upkeep
    from weir.upkeep.compact.run import CompactReport

    asked = []

    def on_spark(uri, storage):
        asked.append((uri, storage))
        return CompactReport(engine="spark")

    monkeypatch.setattr(upkeep, "compact_on_spark", on_spark)
    text = policy.read_text()
    policy.write_text(f"spark_bytes = 1\n{text}")
    assert run("keep", tmp_path, "--policy", policy, "--once").status == 0
    assert asked == [(table.uri, {})]
    policy.write_text(f"spark_bytes = 1000000\n{text}")
    assert run("keep", tmp_path, "--policy", policy, "--once").status == 0
    assert len(asked) == 1
    assert table.stats().generations == 0


def test_nothing_due_is_said(run, table, tmp_path):
    ran = run("keep", tmp_path, "--once")
    assert ran.status == 0
    assert "nothing is due in 1 table\n" in ran.out


def test_a_failure_is_the_exit_status_and_stays_in_the_status(run, table, tmp_path, policy):
    kept = KeepRecords(table.core.store, table.core.env)
    kept.damaged("the log lacks position 7")
    ran = run("keep", tmp_path, "--policy", policy, "--once")
    assert ran.status == 1
    assert "damaged the log lacks position 7" in ran.out
    ran = run("keep", "status", tmp_path)
    assert ran.status == 1
    assert "damaged" in ran.out
    assert run("keep", "retry", table.uri).status == 0
    assert run("keep", tmp_path, "--policy", policy, "--once").status == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["keep", "ftp://x", "--once"], "ftp"),
        (["keep", ".", "--once", "--listen", "nowhere"], "HOST:PORT"),
        (["keep", "run"], "ROOT"),
        (["keep", "--json", "status", "."], "weir keep status"),
    ],
)
def test_wrong_usage_is_named(run, arguments, said):
    ran = run(*arguments)
    assert ran.status == 2
    assert said in ran.err


def test_a_wrong_policy_names_file_and_line(run, tmp_path):
    path = tmp_path / "keep.toml"
    path.write_text("\n\njobs = 'many'\n")
    ran = run("keep", tmp_path, "--policy", path, "--once")
    assert ran.status == 1
    assert f"{path}, line 3: jobs" in ran.err
    path.unlink()
    said = f"weir: cannot read the policy {path}: No such file or directory\n"
    assert run("keep", tmp_path, "--policy", path, "--once").err == said


def test_an_event_pipeline_is_kept_beside_its_live_writer(run, tmp_path, policy):
    """Rows arrive all the time through a writer that never closes; the debt stays bounded."""
    import pyarrow as pa

    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("kind", pa.string())])
    small = weir.WriterConfig(max_memtable_rows=20)
    table = weir.create(
        tmp_path / "lake" / "events", schema, primary_key="id", writer_defaults=small
    )
    rounds, go = threading.Semaphore(0), threading.Semaphore(0)
    failed: list[BaseException] = []

    def pipeline() -> None:
        try:
            with table.writer() as writer:
                for batch in range(5):
                    for n in range(50):
                        writer.put([{"id": batch * 50 + n, "kind": "click"}])
                    rounds.release()
                    go.acquire(timeout=60)
        except BaseException as error:
            failed.append(error)
            rounds.release()

    thread = threading.Thread(target=pipeline, daemon=True)
    thread.start()
    for batch in range(5):
        assert rounds.acquire(timeout=60)
        assert not failed
        ran = run("keep", tmp_path / "lake", "--policy", policy, "--once", "--json")
        assert ran.status == 0, ran.err
        assert {line["result"] for line in ran.lines()} <= {"succeeded", "waits"}
        stats = weir.open(table.uri).stats()
        assert stats.lag <= 60
        assert stats.generations <= 6  # of two rounds: a busy machine publishes some after the look
        assert weir.open(table.uri).count() == (batch + 1) * 50
        go.release()
    thread.join(60)
    assert not failed
    run("keep", tmp_path / "lake", "--policy", policy, "--once")
    assert weir.open(table.uri).scan(freshness="base").count() == 250


def test_a_second_interrupt_does_not_wait_for_jobs(tmp_path):
    from weir.cli.keep import _signals
    from weir.keep.keeper import Keeper
    from weir.keep.policy import KeeperPolicy

    before = signal.getsignal(signal.SIGINT)
    keeper = Keeper([str(tmp_path)], KeeperPolicy())
    with _signals(keeper):
        signal.raise_signal(signal.SIGINT)
        assert keeper._is_stopping
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.s3
@pytest.mark.parametrize("store_kind", ["s3"], indirect=True)
def test_a_prefix_of_an_object_store_is_kept(run, store_kind, table_uri, policy):
    found = store_kind.storage_options
    flags = [word for name, value in found.items() for word in ("-o", f"{name}={value}")]
    for name in ("a", "b/c"):
        made = weir.create(f"{table_uri}/{name}", SCHEMA, primary_key="id", storage_options=found)
        with made.writer() as writer:
            writer.put([{"id": 1}])
    ran = run("keep", table_uri, "--policy", policy, "--once", "--json", *flags)
    assert ran.status == 0, ran.err
    done = {(line["uri"].removeprefix(table_uri), line["job"]) for line in ran.lines()}
    assert done >= {("/a", "compact"), ("/b/c", "compact")}
    shown = run("keep", "status", table_uri, "--json", *flags).json()
    assert {job["status"] for job in shown} == {"succeeded"}

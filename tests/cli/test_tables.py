"""Create tables, inspect them, keep them tidy."""

import io
import shutil
import sys

import lance
import pyarrow as pa
import pytest

import weir
from weir.cli import upkeep
from weir.cli.stats import Sample, overview, sparkline


def test_create_in_words_makes_the_table_that_was_described(run, tmp_path):
    uri = tmp_path / "orders"
    ran = run(
        "create", uri, "-C", "id:int64", "-C", "at:timestamp[us]", "-C", "e:float32[4]",
        "-C", "tags:list<string>", "-C", "must:string!", "--key", "id", "--bucket", "id:2",
        "--set", "durable_write=false", "--set", "max_memtable_rows=500",
        "--set", "fence_ttl=30s", "--set", "max_memtable_age=none", "--json",
    )  # fmt: skip
    assert ran.status == 0, ran.err
    assert ran.json()["shards"] == 2
    table = weir.open(str(uri))
    assert table.schema.field("e").type == pa.list_(pa.float32(), 4)
    assert table.schema.field("tags").type == pa.list_(pa.string())
    assert not table.schema.field("id").nullable
    assert not table.schema.field("must").nullable
    assert table.schema.field("at").nullable
    assert table.primary_key == ("id",)
    assert table.sharding == weir.Bucket("id", 2)
    assert table.writer_defaults.durable_write is False
    assert table.writer_defaults.max_memtable_rows == 500
    assert table.writer_defaults.fence_ttl_s == 30
    assert table.writer_defaults.max_memtable_age is None


def test_a_table_with_a_shard_for_each_writer_is_made_and_written(run, tmp_path):
    uri = tmp_path / "events"
    made = run("create", uri, "-C", "id:int64", "-C", "v:string", "--per-writer", "--json")
    assert made.status == 0, made.err
    assert made.json()["shards"] == 0
    assert weir.open(str(uri)).sharding == weir.PerWriter()
    rows = tmp_path / "rows.csv"
    rows.write_text("id,v\n1,a\n2,b\n")
    for _ in range(2):
        assert run("put", uri, rows).status == 0
    shards = run("stats", uri, "--json").json()["shards"]
    assert len(shards) == 1  # the second took the shard that the first one had left
    assert weir.open(str(uri)).count() == 4
    both = run("create", tmp_path / "u", "-C", "id:int64", "--per-writer", "--bucket", "id:2")
    assert (both.status, "--per-writer" in both.err) == (2, True)
    keyed = run("create", tmp_path / "u", "-C", "id:int64", "--per-writer", "--key", "id")
    assert (keyed.status, "append-only" in keyed.err) == (1, True)
    again = run("reshard", uri, "--bucket", "id:2")
    assert (again.status, "PerWriter" in again.err) == (1, True)


def test_expiry_is_set_when_a_table_is_made_shown_and_changed(run, tmp_path):
    uri = tmp_path / "events"
    columns = ("-C", "id:int64", "-C", "ts:timestamp[us]", "--key", "id")
    made = run("create", uri, *columns, "--expire", "ts=30d")
    assert made.status == 0, made.err
    assert "rows expire 30 d after ts" in made.out
    assert weir.open(str(uri)).expire == weir.Expire("ts", after="30d")
    assert run("expire", uri).out.strip() == "rows expire 30 d after ts"
    told = run("expire", uri, "ts=12h", "--json").json()
    assert told["expire"] == {"column": "ts", "after_s": 43_200.0}
    assert weir.open(str(uri)).expire == weir.Expire("ts", after="12h")
    assert run("expire", uri, "--never").out.strip() == "rows never expire"
    assert weir.open(str(uri)).expire is None


@pytest.mark.parametrize("rule", ["ts", "=30d", "ts=soon", "id=30d", "other=30d"])
def test_a_rule_of_expiry_that_cannot_be_is_refused_and_changes_nothing(run, tmp_path, rule):
    columns = ("-C", "id:int64", "-C", "ts:timestamp[us]", "--key", "id")
    assert run("create", tmp_path / "a", *columns, "--expire", rule).status in (1, 2)
    assert run("create", tmp_path / "b", *columns, "--expire", "ts=1d").status == 0
    ran = run("expire", tmp_path / "b", rule)
    assert ran.status in (1, 2)
    assert ran.err
    assert run("expire", tmp_path / "b", "ts=1d", "--never").status == 2
    assert weir.open(str(tmp_path / "b")).expire == weir.Expire("ts", after="1d")


@pytest.mark.parametrize("pair", ["nonsense=1", "durable_write=perhaps", "max_memtable_rows=-1"])
def test_create_with_a_setting_that_cannot_be_says_which(run, tmp_path, pair):
    ran = run("create", tmp_path / "t", "-C", "id:int64", "--set", pair)
    assert ran.status in (1, 2)
    assert pair.partition("=")[0] in ran.err


def test_create_like_a_file(run, tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("id,v\n1,0.5\n")
    assert run("create", tmp_path / "t", "--like", file, "--key", "id").status == 0
    assert run("put", tmp_path / "t", file).status == 0
    assert weir.open(str(tmp_path / "t")).scan().count() == 1


def test_a_column_whose_type_is_unknown_is_not_created(run, tmp_path):
    """It took nothing but nulls ever after."""
    file = tmp_path / "a.csv"
    file.write_text("id,note\n1,\n2,\n")
    ran = run("create", tmp_path / "t", "--like", file, "--key", "id")
    assert (ran.status, weir.exists(tmp_path / "t")) == (1, False)
    assert "column 'note' holds nulls only" in ran.err


def test_create_where_something_is_says_what_to_do(run, table):
    ran = run("create", table.uri, "-C", "id:int64")
    assert ran.status == 1
    assert "choose another place" in ran.err


def test_enable_adopts_a_dataset(run, tmp_path):
    uri = str(tmp_path / "old.lance")
    lance.write_dataset(pa.table({"id": [1, 2], "v": [0.1, 0.2]}), uri)
    assert run("enable", uri, "--key", "id", "--bucket", "id:2").status == 0
    assert weir.open(uri).scan().count() == 2


def test_shards_and_stats_for_people_and_for_machines(run, table):
    shown = run("shards", table.uri)
    assert "active" in shown.out
    assert str(table.shards()[0].id) in shown.out
    assert len(run("shards", table.uri, "--json").json()) == 4
    writer = table.shard(0).writer()
    writer.put([{"id": 1}])
    found = run("stats", table.uri, "--json").json()
    first = found["shards"][0]
    assert first["lag"] == 2  # the fence and the row
    assert first["unflushed_bytes"] > 0
    assert first["oldest_unflushed_seconds"] >= 0
    shown = run("stats", table.uri).out
    assert "2 entries unflushed" in shown
    writer.close()


def test_stats_counts_pins(run, table):
    table.checkpoint(scope="durable", name="a")
    found = run("stats", table.uri, "--json").json()
    assert found["checkpoints"] == 1
    assert {shard["pins"] for shard in found["shards"]} == {1}


def test_top_once(run, table):
    shown = run("top", table.uri, "--once", "--interval", 0.1)
    assert shown.status == 0
    assert "entries/s" in shown.out
    found = run("top", table.uri, "--json", "--interval", 0.1).json()
    assert found["entries_per_second"] == 0


def test_top_shows_rates_and_a_change_of_owner(table):
    from rich.console import Console

    before = Sample(0.0, table.stats())
    with table.shard(0).writer() as writer:
        for i in range(10):
            writer.put([{"id": 1, "v": float(i)}])
        after = Sample(1.0, table.stats())
    console = Console(width=100, record=True, quiet=True)
    with console.capture() as shown:
        console.quiet = False
        console.print(overview([before, after]))
    assert "11 entries/s" in shown.get()  # ten rows and a fence
    assert "1→2" in shown.get()


def test_bars_of_rates():
    assert sparkline([]) == ""
    assert sparkline([0.0, 0.0]) == ""
    assert sparkline([0.0, 5.0, 10.0]) == "▁▄█"


def test_checkpoint_create_list_refresh_delete(run, table):
    made = run("checkpoint", "create", table.uri, "--name", "nightly", "--ttl", "1h", "--json")
    assert made.json()["name"] == "nightly"
    assert "nightly" in run("checkpoint", "list", table.uri).out
    longer = run("checkpoint", "refresh", table.uri, "nightly", "--ttl", "7d", "--json").json()
    assert longer["expires"] > made.json()["expires"]
    assert run("scan", table.uri, "--checkpoint", "nightly", "--count").out == "3\n"
    assert run("checkpoint", "delete", table.uri, "nightly").status == 0
    assert run("checkpoint", "list", table.uri, "--json").json() == []
    gone = run("scan", table.uri, "--checkpoint", "nightly", "--count")
    assert gone.status == 1
    assert "nightly" in gone.err


def test_the_default_checkpoint_of_the_command_disturbs_no_writer(run, table):
    with table.shard(0).writer() as writer:
        writer.put([{"id": 1, "v": 9.0}])
        assert run("checkpoint", "create", table.uri, "--name", "now").status == 0
        writer.put([{"id": 1, "v": 10.0}])
    assert table.get([1])["v"].to_pylist() == [10.0]


def test_clone_and_restore(run, table, tmp_path):
    run("checkpoint", "create", table.uri, "--name", "before")
    with table.writer() as writer:
        writer.delete([1])
    copy = str(tmp_path / "copy")
    assert run("clone", table.uri, copy, "--checkpoint", "before").status == 0
    assert weir.open(copy).scan().count() == 3
    restored = run("restore", table.uri, "before", "--yes")
    assert restored.status == 0
    assert f"weir restore {table.uri} " in restored.out
    assert weir.open(table.uri).scan().count() == 3


def test_c15_checkpoint_release_lets_go_of_a_deleted_clone_only(run, table, tmp_path):
    copy = tmp_path / "copy"
    assert run("compact", table.uri).status == 0
    assert run("clone", table.uri, copy).status == 0
    refused = run("checkpoint", "release", table.uri, copy, "--yes")
    assert refused.status == 1
    assert "still exists" in refused.err
    assert f"weir checkpoint release {table.uri} {copy}" in run("drop", table.uri, "-y").err
    shutil.rmtree(copy)
    assert run("checkpoint", "release", table.uri, copy, "--yes").status == 0
    assert run("checkpoint", "list", table.uri, "--json").json() == []


def test_a_command_that_is_told_can_be_typed_as_it_stands(run, tmp_path):
    place = tmp_path / "my table"
    made = run("create", place, "-C", "id:int64", "--key", "id").out
    assert f"weir put '{place}' FILE" in made
    run("checkpoint", "create", place, "--name", "now")
    assert f"weir restore '{place}' " in run("restore", place, "now", "--yes").out


def test_restore_asks_first(run, table, monkeypatch):
    run("checkpoint", "create", table.uri, "--name", "before")
    with table.writer() as writer:
        writer.delete([1])
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    assert run("restore", table.uri, "before").status != 0
    assert table.scan().count() == 2


def test_drop_asks_first_and_leaves_nothing(run, table, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    refused = run("drop", table.uri)
    assert (refused.status, "--yes" in refused.err) == (2, True)
    assert table.count() > 0
    assert run("drop", table.uri, "--json").status == 2, "it says how to print, and no more"
    assert weir.exists(table.uri)
    assert run("drop", table.uri, "--json", "--yes").json() == {"uri": table.uri, "dropped": True}
    assert not weir.exists(table.uri)
    assert run("drop", table.uri, "--yes").status == 1


def test_compact_then_gc(run, table):
    ran = run("compact", table.uri, "--json")
    assert ran.json()["report"]["sstables"] > 0
    assert weir.open(table.uri).scan(freshness="base").count() == 3
    assert "nothing to do" in run("compact", table.uri).out
    dry = run("gc", table.uri, "--min-age", "0s", "--fence-retention", "2m", "--dry-run", "--json")
    assert dry.json()["dry_run"] is True
    assert dry.json()["deleted"] > 0
    shown = run("gc", table.uri, "--min-age", "0s", "--fence-retention", "2m")
    assert "deleted" in shown.out
    assert run("gc", table.uri, "--fence-retention", "1s").status == 1
    assert table.scan().count() == 3


def test_watching_folds_only_what_is_due(run, table, monkeypatch):
    def stop(_seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(upkeep, "sleep", stop)
    waiting = table.stats().generations
    assert waiting
    assert "compaction is not due" in run("compact", table.uri, "--watch", "5m").out
    assert table.stats().generations == waiting
    monkeypatch.setattr(weir.CompactionPolicy.__init__, "__defaults__", (1, 1, 0, 1))
    assert "compacted" in run("compact", table.uri, "--watch", "5m").out
    assert table.stats().generations == 0


def test_watching_survives_what_passes_and_nothing_else(run, table, monkeypatch):
    errors = [weir.StoreError("no route"), weir.CommitConflict("lost"), weir.CorruptEntry("torn")]
    monkeypatch.setattr(upkeep, "sleep", lambda _seconds: None)

    def fails(*_, **__):
        raise errors.pop(0)

    monkeypatch.setattr(weir.Table, "compact", fails)
    monkeypatch.setattr(weir.CompactionPolicy.__init__, "__defaults__", (1, 1, 0, 1))  # always due
    ran = run("compact", table.uri, "--watch", "5m")
    assert ran.status == 1
    assert ran.err.splitlines() == [
        "weir: no route; retrying in 5 m", "weir: lost; retrying in 5 m", "weir: torn",
    ]  # fmt: skip


def test_reshard(run, table):
    assert run("reshard", table.uri, "--bucket", "id:8", "--json").json()["shards"] == 8
    assert weir.open(table.uri).scan().count() == 3


def test_wal_move(run, table, tmp_path):
    place = str(tmp_path / "nvme")
    told = run("wal", "move", table.uri, place, "--json").json()
    assert told["wal_uri"] == place
    assert len(told["moved"]) == len(table.shards())
    assert run("stats", table.uri, "--json").json()["wal_uri"] == place
    assert place in run("stats", table.uri).out.replace("\n", "")
    again = run("wal", "move", table.uri, place)
    assert "already" in again.out
    back = run("wal", "move", table.uri, "--beside")
    assert "beside the data" in back.out
    assert weir.open(table.uri).wal_uri is None
    assert weir.open(table.uri).scan().count() == 3
    assert run("wal", "move", table.uri).status == 2
    assert run("wal", "move", table.uri, place, "--beside").status == 2


def test_doctor_looks_at_the_installation_the_store_and_the_table(run, table, tmp_path):
    found = run("doctor", table.uri, "--json")
    assert found.status == 0
    names = [finding["name"] for finding in found.json()["findings"]]
    assert "race of creates" in names
    assert names[-2:] == ["table", "lancedb"]
    assert "none here yet" in run("doctor", tmp_path / "empty").out
    assert run("doctor").status == 0


def test_doctor_fails_for_a_store_that_breaks_its_promises(run, table, monkeypatch):
    from weir.store import probe
    from weir.store.probe import Check, ProbeReport

    broken = ProbeReport("x", (Check("race of creates", False, 0.1, "2 of 8 won"),))
    monkeypatch.setattr(probe, "probe", lambda _store: broken)
    ran = run("doctor", table.uri)
    assert ran.status == 1
    assert "2 of 8 won" in ran.err


@pytest.mark.slow
def test_top_ends_when_it_is_interrupted(table):
    import os
    import pty
    import signal
    import subprocess
    import sys

    ours, theirs = pty.openpty()
    # CPython sleeps on if a signal comes in the moment before it sleeps: for an interval.
    command = [sys.executable, "-m", "weir", "top", table.uri, "--interval", "5"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while b"to compact" not in seen:
            seen += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    os.close(ours)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_compact_on_spark(table):
    import subprocess
    import sys

    # In a separate process, because the command must create its own session.
    command = [sys.executable, "-m", "weir", "compact", table.uri, "--engine", "spark", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert weir.open(table.uri).scan(freshness="base").count() == 3

"""P-1, P-2: a batch too large for one log entry is all there or not at all, after any crash."""

import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from simulator.steps import Died, watched
from tests.support.spark import SCHEMA, in_weir, make_table, once, put
from weir.log.site import ShardSite
from weir.read.snapshot import Snapshot
from weir.shard.large_batch import LargeBatch
from weir.shard.tokens import Tokens
from weir.spark.publish import publish
from weir.spark.shard_sink import ShardSink, Token
from weir.spark.staging import Stage
from weir.spark.statement import Statement
from weir.spark.writers import ShardWriters
from weir.upkeep.restore import restore

STEPS = ("logged", "written", "announced", "published")
ROWS = {k: f"v{k}" for k in range(10)}


def batch(rows: dict[int, str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": k, "v": v} for k, v in rows.items()], schema=SCHEMA)


def write(table: weir.Table, rows: dict[int, str], number: int = 1) -> ShardSink:
    """Add the rows one by one, three to a chunk."""
    size = batch({0: "v0"}).nbytes * 3
    sink = ShardSink(ShardWriters(table.core), 0, Token("app", number), entry_bytes=size)
    for key, value in rows.items():
        sink.add(batch({key: value}))
    return sink


def die_at(monkeypatch: pytest.MonkeyPatch, step: str, *, nth: int = 1) -> None:
    """Let loads die when they reach `step` for the nth time."""

    def die() -> None:
        raise Died(step)

    at(monkeypatch, step, die, nth=nth)


def at(
    monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], None], *, nth: int = 1
) -> None:
    """Run `act` when loads reach `step` for the nth time."""
    seen = 0

    def pause(name: str) -> None:
        nonlocal seen
        seen += name == step
        if name == step and seen == nth:
            act()

    init = LargeBatch.__init__

    def dying(self: LargeBatch, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)  # type: ignore[arg-type]
        self._appender.site = watched(self._appender.site, "load", pause)

    monkeypatch.setattr(LargeBatch, "__init__", dying)


@pytest.mark.parametrize("keyed", [True, False])
def test_p2_a_large_batch_becomes_visible_in_one_manifest_commit(
    tmp_path: Path, keyed: bool
) -> None:
    table = make_table(tmp_path, keyed=keyed, buckets=1)
    put(table, {0: "old", 50: "old"})
    with table.writer(weir.WriterConfig(enable_memtable=False)) as writer:
        writer.put([{"id": 60, "v": "in the log only"}])
    before = in_weir(table)
    sink = write(table, ROWS)
    versions = table.shard(0).manifest().version
    assert in_weir(table) == before
    sink.finish()
    assert table.shard(0).manifest().version == versions + 1
    manifest = table.shard(0).manifest()
    # Four chunks of at most three rows; memory holds one chunk at a time.
    assert [t.physical_rows for t in manifest.sstables][-4:] == [3, 3, 3, 1]
    expected = {50: "old", 60: "in the log only"} | ROWS
    assert in_weir(table) == once(expected) + once({} if keyed else {0: "old"})
    # W-4: a change feed misses nothing, and R leaves no gap (W-2).
    seen = [r for c in table.changes() for r in c.batch.to_pylist()]
    assert {(r["id"], r["v"]) for r in seen} >= set(ROWS.items())
    assert manifest.replay_after == manifest.last_seen == table.shard(0).tailer().tip()
    again = write(table, ROWS)
    again.finish()
    assert not again.applied
    assert table.shard(0).manifest().sstables == manifest.sstables


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_p2_who_dies_at_any_step_left_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, keyed: bool
) -> None:
    table = make_table(tmp_path, keyed=keyed, buckets=1)
    with monkeypatch.context() as patched:
        die_at(patched, step, nth=2 if step in ("logged", "written") else 1)
        with pytest.raises(Died):
            write(table, ROWS).finish()
    expected = once(ROWS if step == "published" else {})
    assert in_weir(table) == expected
    # The next writer of the shard replays no row of the batch and can write.
    put(table, {100: "after"})
    assert in_weir(table) == expected + once({100: "after"})
    if step == "published":
        # The token remains after its SSTables are folded, pruned and collected.
        assert list(table.core.store.list("_weir/shards"))
        table.compact()
        table.gc(min_age=0, fence_retention="2m")
    again = write(table, ROWS)
    again.finish()
    assert again.applied == (step != "published")
    assert in_weir(table) == once(ROWS | {100: "after"})
    table.compact()
    assert in_weir(table, freshness="base") == in_weir(table) == once(ROWS | {100: "after"})
    names = [meta.path for meta in table.core.store.list("_weir/shards")]
    assert not [name for name in names if "/load-" in name]


def test_p1_an_attempt_overtaken_by_another_changes_nothing(tmp_path: Path) -> None:
    table = make_table(tmp_path, keyed=False, buckets=1)
    slow = write(table, ROWS)
    fast = write(table, ROWS)
    fast.finish()
    with pytest.raises(weir.FencedError):
        slow.finish()
    assert in_weir(table) == once(ROWS)
    # A writer that opens in between also fences the attempt, and its rows stay.
    slow = write(table, dict.fromkeys(range(200, 210), "x"), number=2)
    put(table, {300: "y"})
    with pytest.raises(weir.FencedError):
        slow.finish()
    assert in_weir(table) == once(ROWS | {300: "y"})


def test_p1_an_attempt_overtaken_right_before_its_commit_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path, keyed=False, buckets=1)
    at(monkeypatch, "announced", lambda: put(table, {300: "y"}))
    with pytest.raises(weir.FencedError):
        write(table, ROWS).finish()
    assert in_weir(table) == once({300: "y"})
    monkeypatch.undo()
    write(table, ROWS).finish()
    assert in_weir(table) == once(ROWS | {300: "y"})


def test_a_writer_that_gets_in_between_flush_and_claim_loses_nothing(tmp_path: Path) -> None:
    """The writer's live entry is flushed first, since tags may not fall behind it (W-1)."""
    table = make_table(tmp_path, keyed=False, buckets=1)
    shard = table.shard(0)
    came: list[int] = []

    def flush() -> ShardSite:
        with shard.writer(weir.WriterConfig()) as writer:
            site = writer.site
        if not came:
            came.append(1)
            with shard.writer(weir.WriterConfig(enable_memtable=False)) as other:
                other.put([{"id": 300, "v": "y"}])
        return site

    load = LargeBatch.open(
        flush, schema=shard.table_schema, lake=table.core.lake, env=table.core.env
    )
    load.add(pa.Table.from_batches([batch(ROWS)]))
    assert in_weir(table) == once({300: "y"})
    load.publish(app="app", version=1)
    assert in_weir(table) == once(ROWS | {300: "y"})


def test_p2_an_announced_token_counts_only_once_it_is_true(tmp_path: Path) -> None:
    table = make_table(tmp_path, buckets=1)
    put(table, {1: "a"})
    manifest = table.shard(0).manifest()
    tokens = Tokens(table.shard(0).site)
    tokens.announce("app", 7, ["nobody_gen_9"], epoch=manifest.writer_epoch)
    assert tokens.load("app") is None
    tokens.announce("app", 5, [manifest.sstables[0].path], epoch=manifest.writer_epoch)
    assert tokens.load("app") == 5
    put(table, {2: "b"})  # a newer epoch: SSTables not named by now never will be
    assert tokens.load("app") == 5
    names = [meta.path for meta in table.core.store.list("_weir/shards")]
    assert not [name for name in names if "/load-" in name]


def test_p2_pylance_passes_over_the_log_of_an_attempt_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lance

    table = make_table(tmp_path, buckets=1)
    with monkeypatch.context() as patched:
        die_at(patched, "announced")
        with pytest.raises(Died):
            write(table, ROWS).finish()
    shard = str(table.shard(0).id)
    dataset = lance.dataset(table.uri)
    with dataset.mem_wal_writer(shard) as native:
        native.put(pa.Table.from_batches([batch({100: "native"})]))
    assert in_weir(table) == once({100: "native"})


def statement(table: weir.Table, read: Snapshot, rows: dict[int, str]) -> None:
    """What an UPDATE writes that computed these rows from that snapshot."""
    token = Token(uuid.uuid4().hex, 1)
    stage = Stage(table.core, "job", 0, limit=1 << 20)
    stage.add(batch(rows))
    publish(
        ShardWriters(table.core),
        {0: stage.finish()},
        token,
        entry_bytes=1 << 20,
        statement=Statement(read, token),
    )


def test_p7_a_statement_that_read_while_a_large_batch_was_under_way_is_refused(
    tmp_path: Path,
) -> None:
    """Its entries were in the log by then, and its rows were not in the table."""
    table = make_table(tmp_path, buckets=1)
    put(table, dict.fromkeys(ROWS, "old"))
    sink = write(table, ROWS)
    reader = weir.open(table.uri)
    read = reader.snapshot()
    assert in_weir(reader) == once(dict.fromkeys(ROWS, "old"))
    sink.finish()
    with pytest.raises(weir.CommitConflict, match="was written"):
        statement(reader, read, {0: "old, and more"})
    assert in_weir(table) == once(ROWS)
    statement(reader, reader.snapshot(), {0: "v0, and more"})
    assert in_weir(table) == once(ROWS | {0: "v0, and more"})


def test_p7_a_large_batch_that_was_given_up_refuses_no_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise none of its rows could be changed by a statement again."""
    table = make_table(tmp_path, buckets=1)
    put(table, dict.fromkeys(ROWS, "old"))
    before = table.snapshot()
    with monkeypatch.context() as patched:
        die_at(patched, "announced")
        with pytest.raises(Died):
            write(table, ROWS).finish()
    after = table.snapshot()
    statement(table, before, {0: "mine"})
    statement(table, after, {1: "mine"})
    assert in_weir(table) == once(dict.fromkeys(ROWS, "old") | {0: "mine", 1: "mine"})


@pytest.mark.parametrize("begins", ["follow", "consumer", "now"])
def test_p3_a_feed_that_begins_while_a_large_batch_is_under_way_tells_its_rows(
    tmp_path: Path, begins: str
) -> None:
    table = make_table(tmp_path, keyed=False, buckets=1)
    put(table, {100: "before"})
    with table.writer(weir.WriterConfig(enable_memtable=False)) as writer:
        writer.put([{"id": 101, "v": "in the log only"}])
    sink = write(table, ROWS)
    reader = weir.open(table.uri)
    feed = {
        "follow": lambda: reader.follow(once=True),
        "consumer": lambda: reader.follow("mirror", once=True),
        "now": lambda: reader.changes("now"),
    }[begins]()
    rows = in_weir(reader)
    sink.finish()
    found = Counter((r["id"], r["v"]) for c in feed for r in c.batch.to_pylist())
    assert found == once(ROWS) + (Counter() if begins == "now" else rows)


def test_k11_the_way_back_of_a_restore_holds_a_large_batch_that_was_published_meanwhile(
    tmp_path: Path,
) -> None:
    """All its entries were in the log when the way back was made: only the manifest came later."""
    table = make_table(tmp_path, buckets=1)
    put(table, {100: "before"})
    table.checkpoint(name="back")
    load = ShardWriters(table.core).load(0, limit=1 << 20)
    load.add(pa.Table.from_batches([batch(ROWS)]))

    def publish_it(step: str) -> None:
        if step == "base":
            load.publish(app="app", version=1)

    report = restore(watched(weir.open(table.uri).core, "restore", publish_it), "back")
    assert in_weir(table) == once({100: "before"})
    assert in_weir(table, checkpoint=report.undo) == once(ROWS | {100: "before"})

"""The process around a writer: its forks (F-17, F-16) and its end (F-16).

Each broke once: forked processes drew the same ids, and a child's flush overwrote the files of a
published SSTable; once the main thread had returned, puts over several shards raised
`RuntimeError`, and rows that `atexit` should have made durable were lost.
"""

import asyncio
import os
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import weir
from tests.support.hooks import HookStore
from tests.support.local_shard import LocalShard, ids, row
from tests.support.moments import again, expect, make, put, rows
from tests.support.shards import HandClock
from tests.support.threads import Caller, until
from weir.env import SYSTEM, Env
from weir.log.site import ShardSite
from weir.shard.writer import ShardWriter

FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def run(script: str, *args: str) -> str:
    """What a program prints; it must exit without an error."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def in_child(act: Callable[[], str]) -> str:
    """What `act` returns or raises in a forked child, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            said = act()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        said = answers.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child died with {os.waitstatus_to_exitcode(status)}"
    return said


# -- the end of the interpreter --------------------------------------------------------------------

AT_EXIT = """
    import atexit, sys
    import pyarrow as pa
    import weir

    table = weir.open(sys.argv[1])
    writer = table.writer(weir.WriterConfig(durable_write=False, max_wal_flush_interval="1h"))
    atexit.register(writer.close)
    writer.put([{"id": i, "v": "late"} for i in range(40)])
"""

AFTER_MAIN = """
    import sys, threading
    import weir

    table = weir.open(sys.argv[1])
    writer = table.writer()
    main = threading.main_thread()

    def work():
        main.join()
        for n in range(20):
            writer.put([{"id": i, "v": str(n)} for i in range(40)])
        writer.close()

    threading.Thread(target=work).start()
"""


def test_f16_rows_closed_at_exit_are_durable(tmp_path: Path) -> None:
    table = make(tmp_path / "t", 8)
    run(AT_EXIT, table.uri)
    assert rows(again(table)) == expect((range(40), "late"))


def test_f16_threads_put_to_several_shards_after_the_main_thread_returned(tmp_path: Path) -> None:
    table = make(tmp_path / "t", 8)
    run(AFTER_MAIN, table.uri)
    assert rows(again(table)) == expect((range(40), "19"))


def test_a_map_works_with_the_threads_it_gets(monkeypatch) -> None:
    """A process at its limit or at exit cannot start threads: the calling thread does the work."""
    import threading

    from weir import env

    def refuse(self) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(env, "_CREW", [])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert SYSTEM.threads.map(lambda n: n * n, [1, 2, 3], workers=3) == [1, 4, 9]


def test_a_map_runs_side_by_side_and_raises_the_first_error() -> None:
    import threading

    together = threading.Barrier(4, timeout=10)
    assert SYSTEM.threads.map(lambda n: together.wait() and n, [1] * 4, workers=4).count(0) == 1

    def fail(n: int) -> None:
        raise ValueError(str(n))

    with pytest.raises(ValueError, match="0"):
        SYSTEM.threads.map(fail, list(range(5)), workers=3)


# -- forks -----------------------------------------------------------------------------------------


@FORKS
@pytest.mark.parametrize("env", [SYSTEM, Env()], ids=["shared", "own"])
def test_f17_ids_differ_after_a_fork(env: Env) -> None:
    children = [
        in_child(lambda: str([env.random.getrandbits(128), env.random.random()])) for _ in range(2)
    ]
    said = [*children, str([env.random.getrandbits(128), env.random.random()])]
    assert len(set(said)) == 3


@FORKS
def test_f16_a_writer_used_in_a_forked_child_is_refused_with_a_sentence(tmp_path: Path) -> None:
    table = make(tmp_path / "t", 3)
    writer = table.writer()
    put(writer, range(10), "a")
    shard = next(iter(writer.shard_writers().values()))

    def calls() -> str:
        told = []
        for call in (
            lambda: put(writer, range(10), "child"),
            lambda: put(shard, range(1), "child"),
            lambda: shard.put([{"id": 1, "v": "child"}], wait=False),
            lambda: shard.put_once([{"id": 1, "v": "child"}], app="a", version=1),
            lambda: shard.delete([1]),
            shard.flush,
            shard.flush_wal,
            shard.scan,
            lambda: shard.get([1]),
            writer.flush,
        ):
            try:
                call()
                told.append("no error")
            except weir.WriterClosed as error:
                told.append("forked" if "forked" in str(error) else str(error))
        shard.close()  # the rows belong to the parent: nothing to do here
        writer.close()
        return " ".join(told)

    assert in_child(calls) == " ".join(["forked"] * 10)
    put(writer, range(10), "b")  # the parent goes on
    writer.close()
    assert rows(again(table)) == expect((range(10), "b"))


@FORKS
def test_f16_a_fork_with_rows_on_their_way_writes_them_once(tmp_path: Path) -> None:
    table = make(tmp_path / "t", 2)
    config = weir.WriterConfig(durable_write=False, max_wal_flush_interval="1h")
    with table.writer(config) as writer:
        receipt = writer.put([{"id": i, "v": "a"} for i in range(10)])

        def wait() -> str:
            try:
                return str(receipt.wait())
            except weir.WeirError as error:
                return str(error)

        assert "forked" in in_child(wait)
        assert in_child(lambda: str(writer.close())) == "None"
    assert sum(c.batch.num_rows for c in again(table).changes()) == 10


@FORKS
@pytest.mark.parametrize("call", ["scan", "schema", "put"])
def test_f16_a_table_used_in_a_forked_child_is_refused_with_a_sentence(
    tmp_path: Path, call: str
) -> None:
    """Lance's threads exist only in the parent: the call might never return."""
    table = make(tmp_path / "t", 2)
    assert rows(table) == {}
    calls = {
        "scan": lambda: str(table.scan().to_table()),
        "schema": lambda: str(table.schema),
        "put": lambda: str(table.writer()),
    }
    assert "start the child with spawn" in in_child(calls[call])


@FORKS
def test_f16_an_object_store_in_a_forked_child_is_refused_with_a_sentence() -> None:
    """Its client's threads exist only in the parent: every call would hang, on a new store too."""
    out = run(FORKED_CLIENT)
    assert out.count("start processes with spawn") == 2


FORKED_CLIENT = """
    import os, sys, warnings
    warnings.simplefilter("ignore")
    import weir
    from weir.store.open import open_store

    def head():
        options = {
            "aws_endpoint": "http://127.0.0.1:9", "allow_http": "true", "aws_region": "x",
            "aws_access_key_id": "a", "aws_secret_access_key": "b",
        }
        store = open_store("s3://bucket/prefix", options)
        try:
            getattr(store, "inner", store).head("x")
        except weir.WeirError as error:
            return str(error)

    head()
    child = os.fork()
    if child == 0:
        print(head(), head(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


# -- nothing is overwritten ------------------------------------------------------------------------


@pytest.mark.parametrize("key", [True, False], ids=["keyed", "append_only"])
def test_f17_an_sstable_of_a_taken_name_is_refused_and_changes_nothing(
    tmp_path: Path, key: bool
) -> None:
    shard = LocalShard(tmp_path / "t", key=key)
    writer = shard.writer()
    writer.put([row(1), row(2), row(1, 2.0)])
    writer.flush()
    name = shard.manifest().sstables[0].path
    folder = f"_mem_wal/{shard.shard}/{name}"
    before = {meta.path: shard.raw.get(meta.path).data for meta in shard.raw.list(folder)}
    assert before
    other = writer.intake.rows([row(7), row(8), row(7, 1.0)])
    with pytest.raises(weir.StoreError, match="already has this name"):
        shard.lake.write_sstable(shard.shard, name, other, shard.table_schema)
    after = {meta.path: shard.raw.get(meta.path).data for meta in shard.raw.list(folder)}
    assert after == before
    writer.close()


def test_f17_a_flush_whose_name_is_taken_takes_another(tmp_path: Path) -> None:
    """Two copies of a process draw the same tag, as on a machine restored from a snapshot."""
    shard = LocalShard(tmp_path / "t")
    writer = shard.writer()
    writer.put([row(1), row(2)])
    rows = writer.intake.rows([row(7)])
    shard.lake.write_sstable(shard.shard, "00000007_gen_1", rows, shard.table_schema)  # the twin's
    drawn = iter([7, 7, 8])
    getrandbits = shard.env.random.getrandbits
    shard.env.random.getrandbits = lambda bits: next(drawn) if bits == 32 else getrandbits(bits)
    writer.flush()
    assert [table.path for table in shard.manifest().sstables] == ["00000008_gen_1"]
    assert writer.get([1, 2, 7])["id"].to_pylist() == [1, 2]
    writer.close()


class End:
    """A process at exit: since Python 3.12 it starts no more threads; existing ones go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def comes(self) -> None:
        """From now on no thread can be started."""

        def start(_: threading.Thread) -> None:
            raise RuntimeError("can't create new thread at interpreter shutdown")

        self._monkeypatch.setattr(threading.Thread, "start", start)


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> End:
    return End(monkeypatch)


TIGHT = {"max_memtable_rows": 8, "max_wal_buffer_size": 1000, "max_unflushed_memtable_bytes": 1000}


@pytest.mark.parametrize("memtable", [True, False])
@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("begun", [True, False], ids=["threads", "no threads"])
def test_f16_a_process_at_its_end_puts_flushes_and_closes(tmp_path, end, memtable, durable, begun):
    """A put whose MemTable was full ended the writer, and `close` raised a bare RuntimeError.

    Found by seed 1 of "twins".
    """
    table = make(tmp_path / "t", 1)
    config = weir.WriterConfig(
        enable_memtable=memtable,
        durable_write=durable,
        max_wal_flush_interval=0.05 if begun else "1h",
        **TIGHT,
    )
    writer = table.shards()[0].writer(config)
    if begun:
        put(writer, range(10), "first")
    end.comes()
    acks = [writer.put([{"id": i, "v": "late" * 20}], wait=False) for i in range(40)]
    assert begun or all(ack.done for ack in acks), "nobody else would write them"
    if memtable:
        assert rows_of(writer) == expect((range(40), "late" * 20))
        writer.flush()
    put(writer, range(5), "last")
    writer.close()
    assert all(ack.done for ack in acks)
    assert rows(again(table)) == expect((range(40), "late" * 20), (range(5), "last"))


def test_f16_tasks_look_first_and_compact_at_the_end_of_a_process(tmp_path: Path, end: End) -> None:
    table = make(tmp_path / "t", 1)
    writer = table.shards()[0].writer(weir.WriterConfig(durable_write=True, **TIGHT))
    end.comes()

    async def puts() -> None:
        await asyncio.gather(*(writer.aput([{"id": i, "v": "task" * 20}]) for i in range(40)))

    asyncio.run(puts())
    assert writer.update([{"id": 3, "v": "looked"}]).updated == 1
    writer.close()
    table.compact()
    assert rows(again(table)) == expect((range(40), "task" * 20), ([3], "looked"))


def test_f16_a_put_waits_for_the_flush_thread_where_no_thread_can_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked for work again and again until the flush was done. Found by seed 65000141."""
    start = threading.Thread.start

    def start_none_that_commits(thread: threading.Thread) -> None:
        if thread.name.startswith("weir-wal"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_none_that_commits)
    writer = make(tmp_path / "t", 1).shards()[0].writer(weir.WriterConfig(**TIGHT))
    write, is_quick = writer._flusher._write, threading.Event()
    monkeypatch.setattr(writer._flusher, "_write", lambda table: is_quick.wait() and write(table))
    put(writer, range(8), "full" * 20)
    late = Caller(lambda: put(writer, [9], "late" * 20))
    try:
        until(lambda: writer._state._flush_waiters)
    finally:
        is_quick.set()
        late.result()
    writer.close()


def test_f16_an_interrupted_flush_is_gone_on_with(tmp_path: Path, end: End) -> None:
    """A caller that flushes in place of a thread may be interrupted, even after its commit."""

    def press() -> None:
        raise KeyboardInterrupt

    shard = LocalShard(tmp_path / "t", key=False)
    end.comes()
    hook = HookStore(shard.store, "put_if_absent", "\0", press)
    site = ShardSite(hook, hook, shard.shard, shard.env)
    writer = ShardWriter.open(site, schema=shard.table_schema, lake=shard.lake)
    writer.put([row(1)])
    hook.wait_for("/manifest/")
    with pytest.raises(KeyboardInterrupt):
        writer.flush()
    writer.put([row(2)])
    writer.close()
    assert [table.generation for table in shard.manifest().sstables] == [1, 2]
    reader = shard.writer()
    assert ids(reader) == [1, 2]
    reader.close()


def test_f16_nobody_flushes_beside_the_thread_that_a_put_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush finds nothing to do and no thread; a put that comes then fills the MemTable, and
    starts the thread. Both would flush it."""
    shard = LocalShard(tmp_path / "t")
    writer = shard.writer(max_memtable_rows=2)
    flusher, me = writer._flusher, threading.current_thread()
    write, flushed = flusher._write, threading.Event()
    writers = []

    class BeforeAPut:
        """The lock of whoever flushes in the place of the thread."""

        def __enter__(self) -> None:
            writer.put([row(1), row(2)])
            writer.put([row(3)])

        def __exit__(self, *_: object) -> None:
            flushed.set()

    def write_one(table):
        writers.append(threading.current_thread())
        if writers[-1] is not me:
            flushed.wait(30)  # the other has it to itself, if there is one
        return write(table)

    flusher._helping = BeforeAPut()
    monkeypatch.setattr(flusher, "_write", write_one)
    writer.flush()
    assert me not in writers
    flushed.set()
    writer.put([row(4)])
    writer.close()
    assert me not in writers
    assert len(shard.manifest().sstables) == len(writers) == 1


def rows_of(writer: weir.ShardWriter) -> dict[int, str]:
    return {row["id"]: row["v"] for row in writer.scan().read_all().to_pylist()}


def test_f17_two_machines_restored_from_one_snapshot_write_under_different_ids():
    """They draw the same numbers, at different times."""
    clock = HandClock()
    one, other = (Env(clock=clock, random=random.Random("snapshot")) for _ in range(2))
    first = one.new_id()
    clock.sleep(1e-3)
    assert other.new_id() != first
    assert first.version == 4

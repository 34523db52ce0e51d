"""Every event of the log says which table it is of: shards of all tables have the same ids."""

import ast
import logging
from pathlib import Path

import pytest

import weir
from tests.support.moments import again, make, put
from tests.support.threads import Caller

SOURCES = Path(weir.__file__).parent
TOLD_BY = ("table=", "uri=", "root=", "folder=", "label", "path=", "from=", "store=")
"""How an event says where it happened; a label is that of a shard, with its table."""
NOWHERE = {"spark.secrets.exposed"}
"""Events of no table."""


def test_every_event_of_a_shard_names_its_table(tmp_path, caplog):
    table = make(tmp_path / "t", 2, writer_defaults=weir.WriterConfig(stats_log_interval=1e-9))
    with caplog.at_level(logging.INFO, "weir"):
        old = table.writer()
        put(old, range(20), "a")
        with again(table).writer() as new:
            put(new, range(20), "b")
        with pytest.raises(weir.WeirError):
            put(old, range(20), "c")
        again(table).compact()
        again(table).gc(min_age=0, fence_retention="20m")
        again(table).reshard(weir.Bucket("id", 3))
        again(table).move_wal(str(tmp_path / "wal"))
    names = {record.getMessage().split()[0] for record in caplog.records}
    assert names >= {"wal.fenced", "shard.claimed", "flush.published", "gc.done", "wal.moved"}
    assert [r.getMessage() for r in caplog.records if table.uri not in r.getMessage()] == []


def test_every_event_in_the_code_says_where_it_happened():
    """Also those that no test makes happen."""
    found = {}
    for path in SOURCES.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            for call in ast.walk(function):
                match call:
                    case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"))):
                        event = ast.literal_eval(call.args[0]).split()[0]
                        found[event] = ast.unparse(call), ast.unparse(function)
    assert len(found) > 40
    silent = {
        event
        for event, (call, function) in found.items()
        if not any(word in call for word in TOLD_BY)
        and not ("*facts" in call and ".label" in function)
        and not ("where" in call and ".label" in function)
    }
    assert silent == NOWHERE


def test_a_callback_that_fails_is_logged_with_its_table(tmp_path, caplog):
    table = make(tmp_path / "t", 1)

    def fail(_ack):
        raise ValueError("of the application")

    with table.shard(0).writer() as writer:
        ack = writer.put([{"id": 1, "v": "a"}], wait=False)
        ack.add_done_callback(fail)
        ack.wait()
    (told,) = [r.getMessage() for r in caplog.records if "ack.callback.failed" in r.getMessage()]
    assert f"table={table.uri} shard=" in told


class _Looks(logging.Handler):
    """What an application may do with an event: it adds the state of its writer."""

    def __init__(self, writer):
        super().__init__()
        self.writer, self.seen = writer, []

    def emit(self, record):
        self.writer.stats()
        self.seen.append(record.getMessage().split()[0])


def test_h4_a_log_handler_may_look_at_the_writer_whose_event_it_is(tmp_path):
    config = weir.WriterConfig(
        max_wal_buffer_size=1000, max_unflushed_memtable_bytes=4000, fence_ttl=0
    )
    table = make(tmp_path / "t", 1, writer_defaults=config)
    writer = table.shard(0).writer()
    looks = _Looks(writer)
    logging.getLogger("weir.shard").addHandler(looks)
    try:
        for _ in range(20):  # waits for room
            Caller(lambda: put(writer, range(20), "a" * 100)).result(60)
        with again(table).writer() as other:
            put(other, [1], "b")
        with pytest.raises(weir.FencedError):
            Caller(lambda: put(writer, [2], "c")).result(60)
    finally:
        logging.getLogger("weir.shard").removeHandler(looks)
    assert {"writer.backpressure", "writer.ended"} <= set(looks.seen)

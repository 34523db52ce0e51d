"""Spans: one for each log entry, flush and compaction; nothing before they are asked for."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import weir
from tests.support.moments import again, make, put
from tests.support.threads import Caller
from weir.env import Env
from weir.meters import COMPACT, FLUSH, PUT_GROUP
from weir.otel import trace
from weir.testing.faulty import FaultyStores


class Spans:
    """What a real SDK exports."""

    def __init__(self, env: Env) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        trace(self.provider, env=env)

    def of(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


def facts(span: ReadableSpan) -> dict[str, Any]:
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time <= span.end_time
    return {name.removeprefix("weir."): value for name, value in (span.attributes or {}).items()}


def test_each_entry_flush_and_compaction_is_a_span_with_shard_and_epoch(tmp_path: Path) -> None:
    env = Env()
    table = make(tmp_path / "t", shards=1, env=env)
    spans = Spans(env)
    with table.shard(0).writer() as writer:
        put(writer, [1, 2], "a")
        put(writer, [3], "a")
        epoch = writer.epoch
    table.compact()
    entries = [facts(span) for span in spans.of(PUT_GROUP)]
    shard = str(table.shards()[0].id)
    place = {"table": table.uri, "shard": shard, "epoch": epoch}
    assert [each | place for each in entries] == entries
    assert [(each["puts"], each["rows"]) for each in entries] == [(1, 2), (1, 1)]
    assert all(each["bytes"] > 0 for each in entries)
    (flushed,) = map(facts, spans.of(FLUSH))
    assert flushed == {**place, "generation": 1, "rows": 3}
    (folded,) = map(facts, spans.of(COMPACT))
    assert (folded["shards"], folded["epochs"]) == ((shard,), (epoch,))
    assert (folded["table"], folded["rows"], folded["engine"]) == (table.uri, 3, "local")


def test_puts_that_share_an_entry_share_a_span(tmp_path: Path) -> None:
    faulty = FaultyStores(env=Env())
    table = make(tmp_path / "t", shards=1, env=faulty.env)
    spans = Spans(faulty.env)
    with table.shard(0).writer() as writer:
        gate = faulty.at(table.uri).on("put_if_absent", "*/wal/*").pause()
        first = Caller(lambda: put(writer, [0], "a"))
        gate.wait_reached()
        acks = [writer.put([{"id": n, "v": "b"}], wait=False) for n in range(1, 6)]
        gate.release()
        first.result()
        for ack in acks:
            ack.wait()
    puts = [facts(span)["puts"] for span in spans.of(PUT_GROUP)]
    assert puts == [1, 5]


def test_a_span_of_work_that_failed_says_so(tmp_path: Path) -> None:
    env = Env()
    table = make(tmp_path / "t", shards=1, env=env)
    spans = Spans(env)
    old = table.shard(0).writer()
    put(old, [1], "a")
    with again(table).shard(0).writer() as new:
        put(new, [1], "b")
    with pytest.raises(weir.FencedError):
        put(old, [1], "c")
    (failed,) = [
        span for span in spans.of(PUT_GROUP) if span.status.status_code is StatusCode.ERROR
    ]
    assert failed.events[0].name == "exception"
    assert facts(failed)["epoch"] == 1


def test_the_span_of_a_lone_put_belongs_to_the_span_of_its_caller(tmp_path: Path) -> None:
    env = Env()
    table = make(tmp_path / "t", shards=1, env=env)
    spans = Spans(env)
    with table.writer() as writer, spans.provider.get_tracer("test").start_as_current_span("ask"):
        put(writer, [1], "a")
    (asked,) = spans.of("ask")
    (entry,) = spans.of(PUT_GROUP)
    assert entry.parent is not None
    assert asked.context is not None
    assert entry.parent.span_id == asked.context.span_id


def test_without_opentelemetry_the_error_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(weir.InvalidInput, match=r"pip install 'lance-weir\[otel\]'"):
        trace(env=Env())


def test_a_process_that_asks_for_nothing_imports_nothing(tmp_path: Path) -> None:
    program = f"""
import sys, pyarrow as pa, weir, weir.otel
schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
table = weir.create({str(tmp_path / "t")!r}, schema, primary_key="id")
with table.writer() as writer:
    writer.put([{{"id": 1}}])
table.compact()
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", program], check=True)

"""The registry of metrics, what is measured, and the page."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

import weir
from tests.support.moments import make, put
from weir.env import Env
from weir.meters import (
    APPEND_SECONDS,
    CACHES,
    ENTRY_PUTS,
    KEEP_JOBS,
    METRICS,
    OTHER,
    PUTS,
    READS,
    REQUEST_SECONDS,
    ROWS,
    WRITERS,
    Labels,
    Meters,
    Metric,
)
from weir.otel import instrument
from weir.scraping import metrics


def samples(page: str) -> dict[str, float]:
    """The samples of a page by name and labels, as Prometheus's own library reads them."""
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def kept(place: Path) -> tuple[Env, weir.Table]:
    env = Env()
    return env, make(place, env=env)


def test_nothing_is_measured_until_somebody_asks(tmp_path: Path) -> None:
    env, table = kept(tmp_path / "t")
    with table.writer() as writer:
        put(writer, [1], "a")
    assert samples(env.meters.page())["weir_puts_total"] == 0
    assert not env.meters._series
    metrics(env=env)
    with table.writer() as writer:
        put(writer, [2], "a")
    assert samples(metrics(env=env))["weir_puts_total"] == 1


def test_writers_readers_and_upkeep_are_measured(tmp_path: Path) -> None:
    env, table = kept(tmp_path / "t")
    metrics(env=env)
    with table.writer() as writer:
        put(writer, [1, 2], "a")
        put(writer, [3], "a")
    table.scan().to_table()
    table.compact()
    table.gc()
    found = samples(metrics(env=env))
    assert found["weir_put_rows_total"] == 3
    assert found["weir_log_entries_total"] == found["weir_log_append_seconds_count"] >= 2
    assert found["weir_log_entry_bytes_total"] > 100
    assert found["weir_log_entry_puts_count"] == found["weir_log_entries_total"]
    assert found["weir_flush_rows_total"] == 3
    # Rows are durable before their MemTable is flushed.
    assert found["weir_flush_age_seconds_count"] == found["weir_flush_seconds_count"] > 0
    assert found["weir_flush_age_seconds_sum"] > found["weir_flush_seconds_sum"]
    assert found['weir_snapshot_seconds_count{freshness="durable"}'] >= 1
    assert found["weir_compact_rows_total"] == 3
    assert found["weir_compact_seconds_count"] == found["weir_gc_seconds_count"] == 1
    assert found['weir_store_request_seconds_count{verb="put_if_absent"}'] > 4


def test_a_read_counts_its_rows_by_place_and_what_it_found_in_memory(tmp_path: Path) -> None:
    env, table = kept(tmp_path / "t")
    metrics(env=env)
    with table.writer() as writer:
        put(writer, [1, 2], "a")
    table.compact()
    writer = table.writer()
    put(writer, [2, 3], "b")
    for _ in range(2):
        assert table.scan().to_table().num_rows == 3
        assert table.get([1, 2]).num_rows == 2
    writer.close()
    found = samples(metrics(env=env))
    assert found['weir_read_rows_total{level="fresh"}'] == 2 * 2
    assert found['weir_read_rows_total{level="base"}'] == 2 * 2
    for cache in ("bases", "keys"):  # the second read finds what the first one left
        assert found[f'weir_cache_lookups_total{{cache="{cache}",result="miss"}}'] > 0
        assert found[f'weir_cache_lookups_total{{cache="{cache}",result="hit"}}'] > 0
    looked = {name.split('"')[1] for name in found if name.startswith("weir_cache_lookups")}
    assert looked <= set(CACHES)


def test_each_read_is_timed_once_and_a_stream_until_its_first_batch(tmp_path: Path) -> None:
    env, table = kept(tmp_path / "t")
    metrics(env=env)
    with table.writer() as writer:
        put(writer, [1, 2], "a")
    table.scan().to_table()
    first = next(iter(table.scan()))
    assert first.num_rows == 2
    assert table.count() == 2
    assert table.get([1]).num_rows == 1
    found = samples(metrics(env=env))
    reads = {verb: found.get(f'weir_read_seconds_count{{verb="{verb}"}}', 0) for verb in READS}
    assert reads == {"scan": 2, "count": 1, "get": 1, "search": 0}
    assert found["weir_snapshot_tries_count"] >= sum(reads.values())
    assert found["weir_snapshot_tries_sum"] >= found["weir_snapshot_tries_count"]
    with pytest.raises(weir.InvalidInput):
        table.scan(columns=["none"]).to_table()
    again = samples(metrics(env=env))
    assert again['weir_read_seconds_count{verb="scan"}'] == 3, "also with an error"


def test_a_takeover_is_counted(tmp_path: Path) -> None:
    env, table = kept(tmp_path / "t")
    metrics(env=env)
    old = table.writer()
    put(old, [1], "a")
    with weir.open(table.uri).writer() as new:
        put(new, [1], "b")
    with pytest.raises(weir.FencedError):
        put(old, [1], "c")
    old.close()
    found = samples(metrics(env=env))
    assert (found["weir_writers_fenced_total"], found["weir_writers_failed_total"]) == (1, 0)


def test_measuring_is_once_an_entry_and_not_once_a_put(tmp_path: Path) -> None:
    class Counting(Meters):
        calls = 0

        def record(self, *steps: tuple[Metric, float], labels: Labels = ()) -> None:
            Counting.calls += sum(metric in (PUTS, ROWS) for metric, _ in steps)
            super().record(*steps, labels=labels)

    env = Env(meters=Counting())
    table = make(tmp_path / "t", shards=1, env=env)
    env.meters.turn_on()
    with table.writer(
        weir.WriterConfig(durable_write=False, max_wal_flush_interval="1m")
    ) as writer:
        for n in range(100):
            put(writer, [n], "a")
    found = samples(env.meters.page())
    assert found["weir_puts_total"] == 100
    assert Counting.calls == 2 * found["weir_log_entries_total"] < 50


def test_buckets_are_cumulative_and_end_with_all() -> None:
    meters = Meters()
    meters.turn_on()
    for seconds in (0.0005, 0.001, 0.3, 99.0):
        meters.add(APPEND_SECONDS, seconds)
    found = samples(meters.page())
    assert found['weir_log_append_seconds_bucket{le="0.001"}'] == 2
    assert found['weir_log_append_seconds_bucket{le="0.5"}'] == 3
    assert found['weir_log_append_seconds_bucket{le="10"}'] == 3
    assert found['weir_log_append_seconds_bucket{le="+Inf"}'] == 4
    assert found["weir_log_append_seconds_sum"] == pytest.approx(99.3015)


def test_no_label_has_a_value_that_is_not_in_its_list() -> None:
    meters = Meters()
    meters.turn_on()
    meters.add(KEEP_JOBS, 1, "compact", "succeeded")
    meters.add(KEEP_JOBS, 2, "s3://lake/of-a-user", "succeeded")
    found = samples(meters.page())
    assert found['weir_keep_jobs_total{kind="compact",result="succeeded"}'] == 1
    assert found[f'weir_keep_jobs_total{{kind="{OTHER}",result="succeeded"}}'] == 2


def test_a_child_forked_while_something_is_counted_can_count() -> None:
    program = """
import os, signal, sys, weir
from weir.env import SYSTEM
weir.metrics()
SYSTEM.meters._lock.acquire()  # as another thread would, which the child does not have
child = os.fork()
if child == 0:
    signal.alarm(20)
    weir.metrics()
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)


def test_names_follow_the_rules_of_prometheus() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"weir_[a-z_]+[a-z]", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert tuple(sorted(set(metric.buckets))) == metric.buckets
        assert metric.help.endswith(".")
        assert not {"job", "instance"} & set(metric.labels), "Prometheus renames these"
    assert len({metric.name for metric in METRICS}) == len(METRICS)


class Provider:
    """OpenTelemetry's provider and meter, as far as weir uses them."""

    def __init__(self) -> None:
        self.told: dict[str, list[tuple[float, Any]]] = {}
        self.gauges: dict[str, Any] = {}

    def get_meter(self, name: str) -> Any:
        assert name == "weir"
        return self

    def _instrument(self, name: str) -> Any:
        told = self.told.setdefault(name, [])

        class Instrument:
            def add(self, value: float, attributes: Any) -> None:
                told.append((value, attributes))

            record = add

        return Instrument()

    def create_counter(self, name: str, unit: str, description: str) -> Any:
        assert unit
        assert description
        return self._instrument(name)

    def create_histogram(self, name: str, unit: str, description: str, **advice: Any) -> Any:
        assert advice["explicit_bucket_boundaries_advisory"]
        return self._instrument(name)

    def create_observable_gauge(
        self, name: str, callbacks: Any, unit: str, description: str
    ) -> None:
        self.gauges[name] = callbacks


def test_opentelemetry_gets_every_measurement(tmp_path: Path) -> None:
    provider = Provider()
    env, table = kept(tmp_path / "t")
    env.meters.watch(WRITERS, lambda: {(): 3})
    instrument(provider, env=env)
    with table.writer() as writer:
        put(writer, [1, 2], "a")
    assert sum(value for value, _ in provider.told["weir_put_rows"]) == 2
    assert provider.told[APPEND_SECONDS.name]
    assert {"verb": "put_if_absent"} in [at for _, at in provider.told[REQUEST_SECONDS.name]]
    assert provider.told[ENTRY_PUTS.name]
    (read,) = provider.gauges["weir_writers"]
    (observed,) = read(None)
    assert getattr(observed, "value", None) == 3 or observed[0] == 3
    assert set(provider.gauges) == {m.name for m in METRICS if m.kind == "gauge"}


def test_without_opentelemetry_the_error_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(weir.InvalidInput, match=r"pip install 'lance-weir\[otel\]'"):
        instrument(env=Env())


def test_opentelemetrys_own_sdk_receives_what_the_page_shows(tmp_path: Path) -> None:
    env, table = kept(tmp_path / "t")
    reader = InMemoryMetricReader()
    instrument(MeterProvider([reader]), env=env)
    with table.writer() as writer:
        put(writer, [1, 2], "a")
    page = samples(metrics(env=env))
    received = reader.get_metrics_data()
    assert received is not None
    told = {
        metric.name: point
        for resource in received.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    assert told["weir_put_rows"].value == page["weir_put_rows_total"] == 2
    assert told["weir_log_append_seconds"].count == page["weir_log_append_seconds_count"]
    assert list(told["weir_log_append_seconds"].explicit_bounds) == list(APPEND_SECONDS.buckets)

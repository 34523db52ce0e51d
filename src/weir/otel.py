"""The metrics and spans of this process for OpenTelemetry (extra `otel`), under weir's own names.

OpenTelemetry is imported only here, and only when one of the two functions is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from weir.env import SYSTEM, Clock, Env, takes_env
from weir.errors import InvalidInput
from weir.meters import METRICS, Facts, Meters, Metric

__all__ = ["instrument", "trace"]

Attributes = Mapping[str, str]


class MeterProvider(Protocol):
    """OpenTelemetry's `MeterProvider`."""

    def get_meter(self, name: str) -> object:
        """The meter of that name."""


class TracerProvider(Protocol):
    """OpenTelemetry's `TracerProvider`."""

    def get_tracer(self, instrumenting_module_name: str) -> object:
        """The tracer of that name."""


@takes_env
def instrument(provider: MeterProvider | None = None, *, env: Env = SYSTEM) -> None:
    """Send the metrics of this process to OpenTelemetry from now on.

    `provider` is a `MeterProvider`; None: the one that the application has set. Counters and
    histograms are told once for each log entry, request or job; gauges are read when they are
    exported. `InvalidInput` when OpenTelemetry is not installed. Calling it twice counts twice.
    """
    try:
        from opentelemetry import metrics as api
    except ImportError as error:
        raise _not_installed() from error
    source = api if provider is None else provider
    meter: Any = source.get_meter("weir")
    env.meters.turn_on(_Instruments(meter))
    for metric in METRICS:
        if metric.kind == "gauge":
            read = _reader(env.meters, metric, api.Observation)
            meter.create_observable_gauge(metric.name, [read], metric.unit, metric.help)


@takes_env
def trace(provider: TracerProvider | None = None, *, env: Env = SYSTEM) -> None:
    """Send a span to OpenTelemetry for each log entry, flush and compaction from now on.

    `provider` is a `TracerProvider`; None: the one that the application has set. A span is made
    when its work has ended, once for all puts that share an entry; its parent is the span that is
    current in the thread that did the work. docs/reference/metrics.md lists names and attributes.
    `InvalidInput` when OpenTelemetry is not installed. Calling it twice makes two spans of each.
    """
    try:
        from opentelemetry import trace as api
    except ImportError as error:
        raise _not_installed() from error
    source = api if provider is None else provider
    tracer: Any = source.get_tracer("weir")
    env.meters.turn_on_spans(_Spans(tracer, api.StatusCode.ERROR, env.clock))


def _not_installed() -> InvalidInput:
    return InvalidInput(
        "OpenTelemetry is not installed; run pip install 'lance-weir[otel]', or scrape"
        " weir.metrics()"
    )


def _reader(
    meters: Meters, metric: Metric, observation: Callable[[float, Attributes], object]
) -> Callable[[object], Iterator[object]]:
    def read(_options: object) -> Iterator[object]:
        for labels, value in meters.gauge(metric).items():
            yield observation(value, dict(zip(metric.labels, labels, strict=True)))

    return read


class _Instruments:
    """A sink: one instrument for each counter and histogram of the registry."""

    def __init__(self, meter: Any) -> None:
        self._add: dict[Metric, Callable[[float, Attributes], None]] = {}
        for m in METRICS:
            if m.kind == "counter":
                name = m.name.removesuffix("_total")
                self._add[m] = meter.create_counter(name, m.unit, m.help).add
            elif m.kind == "histogram":
                self._add[m] = meter.create_histogram(
                    m.name, m.unit, m.help, explicit_bucket_boundaries_advisory=m.buckets
                ).record

    def add(self, metric: Metric, value: float, labels: Attributes) -> None:
        self._add[metric](value, labels)


class _Spans:
    """Makes spans of work that has just ended."""

    def __init__(self, tracer: Any, error_status: object, clock: Clock) -> None:
        self._tracer = tracer
        self._error_status = error_status
        self._clock = clock

    def span(self, name: str, seconds: float, facts: Facts, error: BaseException | None) -> None:
        ended = int(self._clock.wall() * 1e9)
        began = ended - int(seconds * 1e9)
        span = self._tracer.start_span(name, attributes=facts, start_time=began)
        if error is not None:
            span.record_exception(error, timestamp=ended)
            span.set_status(self._error_status, str(error))
        span.end(ended)

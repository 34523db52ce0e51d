"""The metrics and spans of this process for OpenTelemetry (extra `otel`), under weir's own names.

OpenTelemetry is imported only here, and only when one of the two functions is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, cast

from weir.env import SYSTEM, Clock, Env
from weir.errors import InvalidInput
from weir.meters import METRICS, Facts, Meters, Metric

__all__ = ["instrument", "trace"]

Attributes = Mapping[str, str]


class _Counter(Protocol):
    def add(self, amount: float, attributes: Attributes) -> None: ...


class _Histogram(Protocol):
    def record(self, amount: float, attributes: Attributes) -> None: ...


class _Meter(Protocol):
    """The part of OpenTelemetry's `Meter` that is used."""

    def create_counter(self, name: str, unit: str, description: str) -> _Counter: ...

    def create_histogram(
        self,
        name: str,
        unit: str,
        description: str,
        *,
        explicit_bucket_boundaries_advisory: Sequence[float] | None = None,
    ) -> _Histogram: ...

    def create_observable_gauge(
        self,
        name: str,
        callbacks: Sequence[Callable[[object], Iterable[object]]],
        unit: str,
        description: str,
    ) -> object: ...


class MeterProvider(Protocol):
    """OpenTelemetry's `MeterProvider`."""

    def get_meter(self, name: str) -> _Meter:
        """The meter of that name."""


class _Span(Protocol):
    def record_exception(self, exception: BaseException, *, timestamp: int) -> None: ...

    def set_status(self, status: object, description: str) -> None: ...

    def end(self, end_time: int) -> None: ...


class _Tracer(Protocol):
    """The part of OpenTelemetry's `Tracer` that is used."""

    def start_span(self, name: str, *, attributes: Facts, start_time: int) -> _Span: ...


class TracerProvider(Protocol):
    """OpenTelemetry's `TracerProvider`."""

    def get_tracer(self, instrumenting_module_name: str) -> object:
        """The tracer of that name."""


def instrument(provider: MeterProvider | None = None, *, env: Env = SYSTEM) -> None:
    """Send the metrics of this process to OpenTelemetry from now on.

    `provider` is a `MeterProvider`; None: the one that the application has set. Counters and
    histograms are told once for each log entry, request or job; gauges are read when they are
    exported. `InvalidInput` when OpenTelemetry is not installed. Calling it twice counts twice.
    """
    meter, observation = _meter(provider)
    env.meters.turn_on(_Instruments(meter))
    for metric in METRICS:
        if metric.kind == "gauge":
            read = _reader(env.meters, metric, observation)
            meter.create_observable_gauge(metric.name, [read], metric.unit, metric.help)


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
    tracer = api.get_tracer("weir") if provider is None else provider.get_tracer("weir")
    env.meters.turn_on_spans(_Spans(cast("_Tracer", tracer), api.StatusCode.ERROR, env.clock))


def _not_installed() -> InvalidInput:
    return InvalidInput(
        "OpenTelemetry is not installed; run pip install 'lance-weir[otel]', or scrape"
        " weir.metrics()"
    )


def _meter(
    provider: MeterProvider | None,
) -> tuple[_Meter, Callable[[float, Attributes], object]]:
    try:
        from opentelemetry import metrics as api
    except ImportError as error:
        if provider is None:
            raise _not_installed() from error
        return provider.get_meter("weir"), lambda value, attributes: (value, attributes)
    if provider is not None:
        return provider.get_meter("weir"), api.Observation
    return cast("_Meter", api.get_meter("weir")), api.Observation


def _reader(
    meters: Meters, metric: Metric, observation: Callable[[float, Attributes], object]
) -> Callable[[object], Iterator[object]]:
    def read(_options: object) -> Iterator[object]:
        for labels, value in meters.gauge(metric).items():
            yield observation(value, dict(zip(metric.labels, labels, strict=True)))

    return read


class _Instruments:
    """A sink: one instrument for each counter and histogram of the registry."""

    def __init__(self, meter: _Meter) -> None:
        self._counters = {
            m: meter.create_counter(m.name.removesuffix("_total"), m.unit, m.help)
            for m in METRICS
            if m.kind == "counter"
        }
        self._histograms = {
            m: meter.create_histogram(
                m.name, m.unit, m.help, explicit_bucket_boundaries_advisory=m.buckets
            )
            for m in METRICS
            if m.kind == "histogram"
        }

    def add(self, metric: Metric, value: float, labels: Attributes) -> None:
        self._counters[metric].add(value, labels)

    def observe(self, metric: Metric, value: float, labels: Attributes) -> None:
        self._histograms[metric].record(value, labels)


class _Spans:
    """Makes spans of work that has just ended."""

    def __init__(self, tracer: _Tracer, error_status: object, clock: Clock) -> None:
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

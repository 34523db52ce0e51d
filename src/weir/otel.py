"""The metrics of this process for OpenTelemetry (extra `otel`), under the names of the registry.

OpenTelemetry is imported only here, and only when `instrument` is called without a provider.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, cast

from weir.env import SYSTEM, Env
from weir.errors import InvalidInput
from weir.meters import METRICS, Meters, Metric

__all__ = ["instrument"]

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


def _meter(
    provider: MeterProvider | None,
) -> tuple[_Meter, Callable[[float, Attributes], object]]:
    try:
        from opentelemetry import metrics as api
    except ImportError as error:
        if provider is None:
            raise InvalidInput(
                "OpenTelemetry is not installed; run pip install 'lance-weir[otel]', or scrape"
                " weir.metrics()"
            ) from error
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

"""Exporters by OTLP over HTTP, for an application that has configured none.

The standard variables OTEL_* hold: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME,
OTEL_METRIC_EXPORT_INTERVAL, OTEL_TRACES_SAMPLER and others. OTEL_TRACES_EXPORTER=none turns traces off, and
OTEL_METRICS_EXPORTER=none metrics.

A collector that cannot be reached costs one log line of Penstock's, not one for each export.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

_log = logging.getLogger("penstock.telemetry")
_exporting = threading.local()
"""Has `said`, the list of messages of the exporter, while this thread exports."""


def _take_message(record: logging.LogRecord) -> bool:
    """Keep a message of an exporter of ours to ourselves. Others pass."""
    said: list[str] | None = getattr(_exporting, "said", None)
    if said is not None:
        said.append(record.getMessage())
    return said is None


for _module in (OTLPSpanExporter.__module__, OTLPMetricExporter.__module__):
    logging.getLogger(_module).addFilter(_take_message)


class _Outage:
    """Logs the first of several failed exports, and the first that succeeds again."""

    def __init__(self, what: str) -> None:
        self._what, self._failing = what, False

    def note(self, failed: bool, said: Sequence[str]) -> None:
        """Take in the result of an export, and what the exporter said."""
        if failed and not self._failing:
            why = (said or ["the collector refuses them"])[0].split(" encountered while")[0]
            _log.warning(
                "%s cannot be exported: %s. The query goes on without them.",
                self._what,
                why,
                extra={"reason": why},
            )
        elif self._failing and not failed:
            _log.warning("%s are exported again.", self._what)
        self._failing = failed


@contextmanager
def _quiet() -> Iterator[list[str]]:
    """Collect the log messages of exporters in this thread, instead of logging them."""
    _exporting.said = said = list[str]()
    try:
        yield said
    finally:
        del _exporting.said


class _Spans(OTLPSpanExporter):
    def __init__(self) -> None:
        super().__init__()
        self._outage = _Outage("Traces")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with _quiet() as said:
            result = super().export(spans)
        self._outage.note(result is not SpanExportResult.SUCCESS, said)
        return result

    def shutdown(self) -> None:
        with _quiet():
            super().shutdown()  # type: ignore[no-untyped-call]


class _Metrics(OTLPMetricExporter):
    def __init__(self) -> None:
        super().__init__()
        self._outage = _Outage("Metrics")

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        with _quiet() as said:
            result = super().export(metrics_data, timeout_millis, **kwargs)
        self._outage.note(result is not MetricExportResult.SUCCESS, said)
        return result

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        with _quiet():
            super().shutdown(timeout_millis, **kwargs)


class OwnProviders:
    """Providers of traces and metrics that end with the query; None for a signal that is turned off."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._exporters: list[_Spans | _Metrics] = []
        self.tracers: TracerProvider | None = None
        self.meters: MeterProvider | None = None
        if environ.get("OTEL_TRACES_EXPORTER", "").strip() != "none":
            spans = _Spans()
            self.tracers = TracerProvider(resource=_resource(), shutdown_on_exit=False)
            self.tracers.add_span_processor(BatchSpanProcessor(spans))
            self._exporters.append(spans)
        if environ.get("OTEL_METRICS_EXPORTER", "").strip() != "none":
            metrics = _Metrics()
            reader = PeriodicExportingMetricReader(metrics)
            self.meters = MeterProvider([reader], resource=_resource(), shutdown_on_exit=False)
            self._exporters.append(metrics)

    def end(self) -> None:
        """Export what is left, both signals at once, and end all threads."""
        ends = [
            threading.Thread(target=provider.shutdown, name="telemetry-end", daemon=True)
            for provider in (self.tracers, self.meters)
            if provider is not None
        ]
        for end in ends:
            end.start()
        for end in ends:
            end.join()

    def give_up(self) -> None:
        """Make exports that are under way fail at once."""
        for exporter in self._exporters:
            exporter.shutdown()


def _resource() -> Resource:
    """The service, as the environment names it; "penstock" if it does not."""
    told = Resource.create()
    if str(told.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        return told.merge(Resource({SERVICE_NAME: "penstock"}))
    return told

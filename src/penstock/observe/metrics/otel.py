"""Metrics of a query, and a trace of each epoch, for OpenTelemetry.

The providers are those that the application has configured. If it has configured none, they are made from
the variables OTEL_* (`otlp.py`) and end with the query.

This module needs the extra `otel`. It is imported where telemetry is asked for.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import TracerProvider

from penstock.observe.metrics import otlp
from penstock.observe.metrics.catalog import EPOCH_DURATION, EPOCH_PHASE, METRICS, Metric
from penstock.observe.metrics.totals import Buckets, NewEntries, Recent, Totals
from penstock.observe.moment import EpochMoment, Moment
from penstock.observe.recording import FlowFacts

_log = logging.getLogger("penstock.telemetry")

_SCOPE = "penstock"
_MOST_TRACES = 20
"""Most epochs of one moment that have a trace: the slowest ones."""
_FLUSH_S = 5.0
"""Seconds that the last export may take when a query ends."""
_NS_PER_MS = 1_000_000


class _Instruments:
    """The instruments of one provider, which all its queries share."""

    def __init__(self, provider: MeterProvider) -> None:
        self.queries: list[Totals] = []
        meter = provider.get_meter(_SCOPE)
        self.durations = {
            metric: meter.create_histogram(
                metric.name,
                metric.unit,
                metric.help,
                explicit_bucket_boundaries_advisory=list(metric.bounds),
            )
            for metric in (EPOCH_DURATION, EPOCH_PHASE)
        }
        for metric in METRICS:
            if metric.kind == "counter":
                meter.create_observable_counter(
                    metric.name, [self._observe(metric)], metric.unit, metric.help
                )
            elif metric.kind == "gauge":
                meter.create_observable_gauge(
                    metric.name, [self._observe(metric)], metric.unit, metric.help
                )

    def _observe(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: [
            Observation(sample.value, {"flow": totals.facts.name, **_labels(metric, sample.labels)})
            for totals in list(self.queries)
            for sample in totals.samples
            if sample.metric is metric and not isinstance(sample.value, Buckets)
        ]


def _labels(metric: Metric, values: Iterable[str]) -> dict[str, str]:
    return dict(zip(metric.labels, values, strict=True))


_instruments: weakref.WeakKeyDictionary[MeterProvider, _Instruments] = weakref.WeakKeyDictionary()


class Telemetry:
    """Metrics and traces of one query. `take` is for `Recorder.watch`. An error in it is logged once."""

    def __init__(
        self,
        facts: FlowFacts,
        tracers: TracerProvider | None,
        meters: MeterProvider | None,
        entries: Recent | None = None,
        own: otlp.OwnProviders | None = None,
    ) -> None:
        """None turns traces or metrics off. `own` has the providers, if they are to end with the query."""
        self._facts, self._own = facts, own
        self._providers = [p for p in (tracers, meters) if p is not None]
        self._tracer = None if tracers is None else tracers.get_tracer(_SCOPE, facts.version)
        self._totals, self._journal = Totals(facts), NewEntries(entries)
        self._instruments: _Instruments | None = None
        if meters is not None:
            self._instruments = _instruments.get(meters) or _Instruments(meters)
            _instruments[meters] = self._instruments
            self._instruments.queries.append(self._totals)
        self._failed = False

    @staticmethod
    def of(facts: FlowFacts, entries: Recent) -> Telemetry:
        """Telemetry by the application's providers or, if it has configured none, by the environment."""
        tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
        if _configured(tracers) or _configured(meters):
            return Telemetry(facts, tracers, meters, entries)
        own = otlp.OwnProviders(os.environ)
        return Telemetry(facts, own.tracers, own.meters, entries, own)

    def take(self, moment: Moment) -> None:
        """Take in a moment. The recorder's thread calls this."""
        try:
            self._totals.take(moment, self._journal.until(moment.time_ms))
            for epoch in moment.epochs:
                self._record(epoch)
            slowest = sorted(moment.epochs, key=lambda e: e.sink_ms + e.seal_ms, reverse=True)
            for epoch in slowest[:_MOST_TRACES]:
                self._trace(epoch)
        except Exception as failed:
            if not self._failed:
                _log.warning("Telemetry fails: %s. The query goes on.", failed, exc_info=failed)
            self._failed = True

    def stop(self) -> None:
        """Export what is left, for some seconds at most."""
        end = threading.Thread(target=self._end, name="telemetry-end", daemon=True)
        end.start()
        end.join(_FLUSH_S)
        if end.is_alive() and self._own is not None:
            self._own.give_up()
            end.join(_FLUSH_S)
        elif end.is_alive():
            _log.warning("The last metrics and traces of %s were not exported.", self._facts.name)
        if self._instruments is not None:
            self._instruments.queries.remove(self._totals)

    def _end(self) -> None:
        """Flush all providers, and shut down our own."""
        try:
            if self._own is not None:
                self._own.end()
                return
            for provider in self._providers:
                if (flush := getattr(provider, "force_flush", None)) is not None:
                    flush(int(_FLUSH_S * 1000))
        except Exception as failed:
            _log.warning("The last metrics and traces were not exported: %s", failed)

    def _record(self, epoch: EpochMoment) -> None:
        if self._instruments is None:
            return
        durations, flow = self._instruments.durations, {"flow": self._facts.name}
        durations[EPOCH_DURATION].record((epoch.sink_ms + epoch.seal_ms) / 1000, flow)
        for phase, took_ms in epoch.phases().items():
            durations[EPOCH_PHASE].record(took_ms / 1000, flow | {"phase": phase})

    def _trace(self, epoch: EpochMoment) -> None:
        """Make the spans of an epoch: one for the whole, and below it one for each phase."""
        if self._tracer is None:
            return
        attributes: dict[str, str | int | float] = {
            "penstock.flow": self._facts.name,
            "penstock.epoch": epoch.epoch,
            "penstock.rows": epoch.rows,
            "penstock.runs": epoch.runs,
        }
        if epoch.latency is not None:
            attributes["penstock.latency.mean"] = epoch.latency.mean_ms / 1000
            attributes["penstock.latency.p99"] = epoch.latency.p99_ms / 1000
        now_ns = epoch.started_ms * _NS_PER_MS
        whole = self._tracer.start_span(
            "epoch", Context(), attributes=attributes, start_time=now_ns
        )
        inside = trace.set_span_in_context(whole, Context())
        for phase, took_ms in epoch.phases().items():
            span = self._tracer.start_span(
                _SPANS[phase],
                inside,
                attributes={name: attributes[name] for name in _OF_PHASES},
                start_time=now_ns,
            )
            now_ns += round(took_ms * _NS_PER_MS)
            span.end(now_ns)
        whole.end(now_ns)


_SPANS = {"read": "source and couriers", "process": "hosts and sink", "seal": "seal"}
_OF_PHASES = ("penstock.flow", "penstock.epoch")


def _configured(provider: object) -> bool:
    """Whether an application has set this global provider. Otherwise OpenTelemetry has a proxy there."""
    return "Proxy" not in type(provider).__name__

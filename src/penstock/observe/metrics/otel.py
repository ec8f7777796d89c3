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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import TracerProvider

from penstock.observe.metrics import otlp
from penstock.observe.metrics.catalog import EPOCH_DURATION, EPOCH_PHASE, LATENCY, METRICS, Metric
from penstock.observe.metrics.epoch_trace import Piece, epoch_tree
from penstock.observe.metrics.totals import Buckets, NewEntries, Recent, Totals
from penstock.observe.moment import EpochMoment, Moment
from penstock.observe.recording import FlowFacts

_log = logging.getLogger("penstock.telemetry")

_SCOPE = "penstock"
_MOST_TRACES = 20
"""Most epochs of one moment that have a trace: the slowest ones."""
_MOST_ROWS = 1_000
"""Latencies of one moment that are recorded at most. The SDK takes each by itself, some microseconds."""
_FLUSH_S = 5.0
"""Seconds that the last export may take when a query ends."""
Attribute = str | int | float


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
            for metric in (EPOCH_DURATION, EPOCH_PHASE, LATENCY)
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
    """Labels with their values. An empty one means that there is none, as in Prometheus."""
    pairs = zip(metric.labels, values, strict=True)
    return {label: value for label, value in pairs if value}


_instruments: weakref.WeakKeyDictionary[MeterProvider, _Instruments] = weakref.WeakKeyDictionary()


class RowSample:
    """A sample of rows' latencies, by the counts of a histogram. What is left over counts next time, so rare
    latencies have their right share too.

    >>> rows = RowSample((1.0, 2.0), most=4)
    >>> rows.latencies((6, 2, 0)), rows.latencies((0, 7, 1))
    ([0.5, 0.5, 0.5, 1.5], [1.5, 1.5, 1.5])
    >>> rows.latencies((0, 0, 1))
    [2.0]
    """

    def __init__(self, bounds: Sequence[float], most: int = _MOST_ROWS) -> None:
        self._middles = [(low + high) / 2 for low, high in pairwise((0.0, *bounds))]
        self._middles.append(bounds[-1])
        self._most, self._left = most, [0.0] * len(self._middles)

    def latencies(self, counts: Sequence[int]) -> list[float]:
        """The middle of each bucket, as often as its share of at most `most` rows."""
        part = min(1.0, self._most / max(sum(counts), 1))
        found: list[float] = []
        for place, count in enumerate(counts):
            exact = count * part + self._left[place]
            self._left[place] = exact - int(exact)
            found += [self._middles[place]] * int(exact)
        return found


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
        self._rows = RowSample(LATENCY.bounds)
        self._waiting: EpochMoment | None = None
        """An epoch whose last spans come with the next one."""
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
            if moment.latency is not None:
                self._record_rows(moment.latency.histogram)
            complete = [whole for epoch in moment.epochs for whole in self._complete(epoch)]
            slowest = sorted(complete, key=lambda e: e.sink_ms + e.seal_ms, reverse=True)
            for epoch in slowest[:_MOST_TRACES]:
                self._trace(epoch)
        except Exception as failed:
            if not self._failed:
                _log.warning("Telemetry fails: %s. The query goes on.", failed, exc_info=failed)
            self._failed = True

    def stop(self) -> None:
        """Export what is left, for some seconds at most."""
        if self._waiting is not None:
            self._trace(self._waiting)
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

    def _record_rows(self, counts: Sequence[int]) -> None:
        if self._instruments is None:
            return
        rows, flow = self._instruments.durations[LATENCY], {"flow": self._facts.name}
        for latency_s in self._rows.latencies(counts):
            rows.record(latency_s, flow)

    def _complete(self, epoch: EpochMoment) -> list[EpochMoment]:
        """Epochs of which all spans are known now that this one has ended."""
        before, self._waiting = self._waiting, epoch if epoch.spans else None
        found = [] if epoch.spans else [epoch]  # a live flow has no spans to wait for
        if before is not None:
            found.insert(0, replace(before, spans=(*before.spans, *epoch.spans)))
        return found

    def _trace(self, epoch: EpochMoment) -> None:
        """Make the spans of an epoch: one for the whole, and below it what was done in it."""
        if self._tracer is None:
            return
        attributes: dict[str, Attribute] = {
            "penstock.flow": self._facts.name,
            "penstock.epoch": epoch.epoch,
            "penstock.rows": epoch.rows,
            "penstock.runs": epoch.runs,
        }
        if epoch.latency is not None:
            attributes["penstock.latency.mean"] = epoch.latency.mean_ms / 1000
            attributes["penstock.latency.p99"] = epoch.latency.p99_ms / 1000
        self._span(epoch_tree(epoch, epoch.spans), Context(), attributes)

    def _span(self, piece: Piece, above: Context, attributes: Mapping[str, Attribute]) -> None:
        """Make the span of a piece and of all below it. Only the outermost has all attributes."""
        assert self._tracer is not None
        work = {f"penstock.work.{name}": round(ms / 1000, 6) for name, ms in piece.work_ms.items()}
        span = self._tracer.start_span(
            piece.name, above, attributes={**attributes, **work}, start_time=_ns(piece.start_ms)
        )
        below = {name: attributes[name] for name in _OF_ALL}
        for part in piece.pieces:
            self._span(part, trace.set_span_in_context(span, above), below)
        span.end(_ns(piece.end_ms))


_OF_ALL = ("penstock.flow", "penstock.epoch")
"""Attributes of all spans."""


def _ns(ms: float) -> int:
    return round(ms * 1000) * 1000  # as exact as clocks are


def _configured(provider: object) -> bool:
    """Whether an application has set this global provider. Otherwise OpenTelemetry has a proxy there."""
    return "Proxy" not in type(provider).__name__

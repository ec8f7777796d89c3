"""The values of a query's metrics, from its moments. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.control.journal.entry import Entry
from penstock.observe.bounds import BoundMoment
from penstock.observe.metrics import catalog as c
from penstock.observe.metrics.catalog import METRICS, Metric
from penstock.observe.moment import EpochMoment, HostMoment, Moment, StepMoment
from penstock.observe.recording import FlowFacts

MOST_HOSTS = 256
"""Most hosts of a step that have metrics of their own, which bounds the number of series."""
_SETTLED_MS = 2_000.0
"""Milliseconds after which the journal gets no more entries with a time before that."""
Recent = Callable[[float], Sequence[Entry]]
"""Returns the entries of a journal after a time in milliseconds since 1970, oldest first."""


class Buckets(NamedTuple):
    """The content of a histogram."""

    counts: tuple[int, ...]
    """Number of values in each bucket of the metric's bounds, and above them."""
    sum: float


class Sample(NamedTuple):
    """One series of a metric, with its value."""

    metric: Metric
    labels: tuple[str, ...]
    """Values of the metric's labels, without that of `flow`."""
    value: float | Buckets


Series = tuple[Metric, tuple[str, ...]]


class Totals:
    """Adds up the moments of a query. One thread calls `take`; any may read `samples`.

    Counters begin with 0 at the query's start. A host that is gone loses its series.
    """

    def __init__(self, facts: FlowFacts) -> None:
        self.facts = facts
        self._counts: dict[Series, float] = {}
        self._gauges: dict[Series, float] = {}
        self._buckets: dict[Series, Buckets] = {}
        self._up: frozenset[str] = frozenset()
        for metric in METRICS:
            if not metric.labels and metric.kind == "counter":
                self._count(metric, 0.0)
            if not metric.labels and metric.kind == "histogram":
                self._add(metric, (0,) * (len(metric.bounds) + 1), 0.0)
        for step in facts.slots:
            for metric in (c.HOST_LOSSES, c.MOVED_SLOTS):
                self._count(metric, 0.0, step)
        self._samples: tuple[Sample, ...] = self._all()

    @property
    def samples(self) -> tuple[Sample, ...]:
        """All series, in the order of the catalog."""
        return self._samples

    def take(self, moment: Moment, entries: Iterable[Entry] = ()) -> None:
        """Take in a moment, and new entries of the journal."""
        before, self._gauges = self._gauges, {}
        self._whole(moment, before)
        for epoch in moment.epochs:
            self._epoch(epoch)
        for step in moment.steps:
            self._step(step)
        self._losses(moment)
        self._moves(moment)
        for entry in entries:
            if entry.event == "began":
                for treatment in entry.facts.get("treatments", ()):
                    self._count(c.TREATMENTS, 1, entry.step, str(treatment["kind"]))
        self._forget_hosts(moment.steps)
        self._samples = self._all()

    def _whole(self, moment: Moment, before: dict[Series, float]) -> None:
        for state in c.STATES:
            self._set(c.STATE, float(moment.state == state), state)
        self._set(c.BACKLOG, moment.backlog)
        self._set(c.COURIERS, moment.couriers)
        self._set(c.PAUSED, float(moment.dry_run))
        self._set(c.EPOCH, moment.epoch)
        for metric in (c.LAST_EPOCH, c.LATENCY_MEAN, c.LATENCY_P50, c.LATENCY_P99):
            self._set(metric, before.get((metric, ())))
        if moment.epochs:
            self._set(c.LAST_EPOCH, max(e.started_ms + e.sink_ms for e in moment.epochs) / 1000)
        if moment.latency is not None:
            self._set(c.LATENCY_MEAN, moment.latency.mean_ms / 1000)
            self._set(c.LATENCY_P50, moment.latency.p50_ms / 1000)
            self._set(c.LATENCY_P99, moment.latency.p99_ms / 1000)
        for bound in moment.all_bounds:
            self._bound(bound, before)
        self._count(c.ROWS, moment.rows)
        self._count(c.LATE_ROWS, moment.late_rows)
        self._count(c.DEAD_LETTERS, moment.dead_letters)
        self._count(c.OFFLOADED, moment.offloaded)
        if moment.money is not None:
            self._counts[c.MONEY, ("hosts",)] = moment.money.hosts
            self._counts[c.MONEY, ("functions",)] = moment.money.functions

    def _bound(self, bound: BoundMoment, before: dict[Series, float]) -> None:
        labels = bound.kind, bound.step or ""
        self._set(c.SLA_LATENCY, bound.latency_ms / 1000, *labels)
        self._set(c.SLA_WINDOW, bound.window_ms / 1000, *labels)
        self._set(c.SLA_REACHED, before.get((c.SLA_REACHED, labels)), *labels)
        self._set(c.SLA_REACHED, _seconds(bound.reached_ms), *labels)
        self._count(c.SLA_WINDOWS, bound.windows, *labels)
        self._count(c.SLA_KEPT, bound.kept, *labels)

    def _epoch(self, epoch: EpochMoment) -> None:
        self._count(c.EPOCHS, 1)
        self._count(c.RERUNS, epoch.runs - 1)
        if epoch.latency is not None and epoch.latency.histogram:
            total = epoch.latency.mean_ms * sum(epoch.latency.histogram) / 1000
            self._add(c.LATENCY, epoch.latency.histogram, total)
        self._observe(c.EPOCH_DURATION, epoch.sink_ms + epoch.seal_ms)
        for phase, took_ms in epoch.phases().items():
            self._observe(c.EPOCH_PHASE, took_ms, phase)

    def _step(self, step: StepMoment) -> None:
        name = step.step
        self._set(c.HOSTS, sum(host.up for host in step.hosts), name)
        self._set(c.HOSTS_WANTED, len(step.hosts), name)
        self._set(c.HOSTS_AT_MOST, step.at_most, name)
        self._set(c.FUNCTIONS, step.functions, name)
        self._set(c.PENDING_SLOTS, step.pending, name)
        self._set(c.HOT_KEYS, len(step.hot_keys), name)
        for host in step.hosts[:MOST_HOSTS]:
            self._host(name, host)

    def _host(self, step: str, host: HostMoment) -> None:
        labels = step, host.host
        self._set(c.HOST_UP, float(host.up), *labels)
        self._set(c.HOST_SLOTS, host.slots, *labels)
        self._set(c.HOST_ARRIVALS, host.rate, *labels)
        self._set(c.HOST_CAPACITY, host.service_rate, *labels)
        self._set(c.HOST_LATENCY, _seconds(host.latency_ms), *labels)
        self._set(c.STATE_BYTES, host.state_bytes, *labels)
        self._set(c.STATE_ENTRIES, host.entries, *labels)
        self._count(c.HOST_ROWS, host.rows, *labels)
        self._count(c.HOST_BUSY, host.useful_ms / 1000, *labels)

    def _losses(self, moment: Moment) -> None:
        """Count lost hosts: those that went down but are still wanted. Where hosts were back within the
        moment, their slots' moves tell of one loss."""
        up = frozenset(host.host for step in moment.steps for host in step.hosts if host.up)
        for step in moment.steps:
            down = sum(not host.up and host.host in self._up for host in step.hosts)
            moves = (h for h in moment.moves.handovers if h.step == step.step)
            moved = any(handover.why == "host lost" for handover in moves)
            self._count(c.HOST_LOSSES, max(down, int(moved)), step.step)
        self._up = up

    def _moves(self, moment: Moment) -> None:
        moves = moment.moves
        for handover in moves.handovers:
            if handover.why != "start":  # then a slot gets its first host
                self._count(c.MOVED_SLOTS, len(handover.slots), handover.step)
        self._count(c.FETCHED_ENTRIES, moves.fetched_keys)
        self._count(c.FETCHED_BYTES, moves.fetched_bytes)
        self._count(c.FETCHES, moves.fetches)
        self._count(c.FETCH_WAIT, moves.wait_ms / 1000)
        self._count(c.EVICTED, moves.evicted)
        self._set(c.PARTIAL_SLOTS, moves.partial_slots)
        self._set(c.LEFT_BEHIND, moves.left_behind)

    def _forget_hosts(self, steps: Sequence[StepMoment]) -> None:
        present = {(step.step, host.host) for step in steps for host in step.hosts}
        gone = [s for s in self._counts if s[0].labels == ("step", "host") and s[1] not in present]
        for series in gone:
            del self._counts[series]

    # -- values

    def _count(self, metric: Metric, more: float, *labels: str) -> None:
        self._counts[metric, labels] = self._counts.get((metric, labels), 0.0) + max(more, 0)

    def _set(self, metric: Metric, value: float | None, *labels: str) -> None:
        if value is not None:
            self._gauges[metric, labels] = float(value)

    def _observe(self, metric: Metric, took_ms: float, *labels: str) -> None:
        """Add one duration to a histogram."""
        took_s = took_ms / 1000
        counts = [0] * (len(metric.bounds) + 1)
        counts[bisect_left(metric.bounds, took_s)] = 1
        self._add(metric, counts, took_s, *labels)

    def _add(self, metric: Metric, counts: Sequence[int], sum: float, *labels: str) -> None:
        """Add the content of a histogram to another."""
        before = self._buckets.get((metric, labels), Buckets((0,) * len(counts), 0.0))
        counted = tuple(a + b for a, b in zip(before.counts, counts, strict=True))
        self._buckets[metric, labels] = Buckets(counted, before.sum + sum)

    def _all(self) -> tuple[Sample, ...]:
        series: dict[Series, float | Buckets] = {**self._counts, **self._gauges, **self._buckets}
        samples = [Sample(metric, labels, value) for (metric, labels), value in series.items()]
        return tuple(sorted(samples, key=lambda sample: _ORDER[sample.metric]))


_ORDER = {metric: number for number, metric in enumerate(METRICS)}


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


@dataclass
class NewEntries:
    """The entries of a journal, each once. `entries` returns those after a time (see `Recording`)."""

    entries: Recent | None
    _since_ms: float = 0.0

    def until(self, now_ms: float) -> list[Entry]:
        """Entries since the last call that are some seconds old: none with an earlier time will follow."""
        if self.entries is None:
            return []
        settled_ms = now_ms - _SETTLED_MS
        found = [e for e in self.entries(self._since_ms) if e.time_ms <= settled_ms]
        self._since_ms = max(self._since_ms, settled_ms)
        return found

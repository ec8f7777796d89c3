"""All metrics of a query: name, kind, unit, meaning and labels.

A name is written as OpenTelemetry has it: `penstock.host.busy`. The name in Prometheus follows by
OpenTelemetry's own rules: dots become underscores, then come the unit and, for counters, `total`. Each metric
also has the label `flow`, the name of the query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.driver.progress import LATENCY_BOUNDS_MS

Kind = Literal["counter", "gauge", "histogram"]

_SUFFIXES = {"s": "seconds", "By": "bytes", "USD": "usd", "1/s": "per_second"}
"""Unit in OpenTelemetry -> its name in Prometheus. Units in braces, such as {row}, are comments."""


@dataclass(frozen=True, eq=False)
class Metric:
    """One metric. It is equal to itself only, so that it is a quick key."""

    name: str
    """Name in OpenTelemetry."""
    kind: Kind
    unit: str
    """Unit in OpenTelemetry: "s", "By", "USD", "1/s", or a comment such as "{row}"."""
    help: str
    labels: tuple[str, ...] = ()
    """Labels beside `flow`."""
    bounds: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets. One more bucket has all above them."""

    @property
    def family(self) -> str:
        """Name in Prometheus, without the suffix `_total` of a counter.

        >>> HOST_BUSY.family, ROWS.family
        ('penstock_host_busy_seconds', 'penstock_rows')
        """
        words = [*self.name.split("."), _SUFFIXES.get(self.unit, "")]
        return "_".join(word for word in words if word)

    @property
    def prometheus(self) -> str:
        """Name of its samples in Prometheus; those of a histogram have further suffixes.

        >>> HOST_BUSY.prometheus, BACKLOG.prometheus
        ('penstock_host_busy_seconds_total', 'penstock_backlog')
        """
        return self.family + ("_total" if self.kind == "counter" else "")


_EPOCH_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_STEP, _HOST = ("step",), ("step", "host")


def _counter(name: str, unit: str, help: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"penstock.{name}", "counter", unit, help, labels)


def _gauge(name: str, unit: str, help: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"penstock.{name}", "gauge", unit, help, labels)


STATE = _gauge("state", "", "Whether the query is in this state: 1 or 0.", ("state",))
STATES = ("starting", "running", "stopped", "finished", "failed")
EPOCH = _gauge("epoch", "", "Number of the newest finished epoch.")
LAST_EPOCH = _gauge(
    "last_epoch.timestamp", "s", "When the newest epoch reached the sink, since 1970."
)
ROWS = _counter("rows", "{row}", "Rows that were read and whose output reached the sink.")
BACKLOG = _gauge("backlog", "{row}", "Rows that were read, or wait in the source, without output.")

LATENCY = Metric(
    "penstock.latency",
    "histogram",
    "s",
    "Latency of rows: from arrival until the output is in the sink.",
    bounds=tuple(bound / 1000 for bound in LATENCY_BOUNDS_MS),
)
LATENCY_MEAN = _gauge("latency.mean", "s", "Average latency of the newest second with rows.")
LATENCY_P50 = _gauge("latency.p50", "s", "Median latency of the newest second with rows.")
LATENCY_P99 = _gauge("latency.p99", "s", "99th percentile of latency of that second.")
_BOUND = ("bound", "step")
"""Labels of a bound of the SLA: its figure, "mean" or "p99", and its step, which is empty for the whole
flow."""
SLA_LATENCY = _gauge("sla.latency", "s", "The bound: highest latency that the SLA allows.", _BOUND)
SLA_REACHED = _gauge(
    "sla.reached", "s", "The figure that the bound is on, in the newest second with rows.", _BOUND
)
SLA_WINDOW = _gauge("sla.window", "s", "Length of the window that the bound holds for.", _BOUND)
SLA_WINDOWS = _counter(
    "sla.windows", "{window}", "Windows of the bound that ended and were judged.", _BOUND
)
SLA_KEPT = _counter("sla.windows.kept", "{window}", "Windows in which the bound was kept.", _BOUND)

EPOCHS = _counter("epochs", "{epoch}", "Epochs that are durable.")
RERUNS = _counter("epoch.reruns", "{run}", "Runs of epochs beyond the first, after lost hosts.")
EPOCH_DURATION = Metric(
    "penstock.epoch.duration",
    "histogram",
    "s",
    "Duration of an epoch, from its start until it is durable.",
    bounds=_EPOCH_S,
)
EPOCH_PHASE = Metric(
    "penstock.epoch.phase",
    "histogram",
    "s",
    "Duration of a phase of an epoch: read (source and couriers), process (hosts and sink), seal.",
    ("phase",),
    _EPOCH_S,
)

HOSTS = _gauge("hosts", "{host}", "Hosts that are up.", _STEP)
HOSTS_WANTED = _gauge("hosts.wanted", "{host}", "Hosts that the step should have.", _STEP)
HOSTS_AT_MOST = _gauge("hosts.at_most", "{host}", "Most hosts that autoscaling may use.", _STEP)
HOST_LOSSES = _counter("host.losses", "{host}", "Hosts that were lost.", _STEP)
HOST_UP = _gauge("host.up", "", "Whether the host's process runs: 1 or 0.", _HOST)
HOST_SLOTS = _gauge("host.slots", "{slot}", "Slots of the host.", _HOST)
HOST_ROWS = _counter("host.rows", "{record}", "Records that the host processed.", _HOST)
HOST_BUSY = _counter("host.busy", "s", "Time that the host worked on records.", _HOST)
HOST_ARRIVALS = _gauge("host.arrivals", "1/s", "Records that arrive at the host.", _HOST)
HOST_CAPACITY = _gauge("host.capacity", "1/s", "Records that the host can process.", _HOST)
HOST_LATENCY = _gauge("host.latency", "s", "Latency of the host's records.", _HOST)
STATE_BYTES = _gauge("host.state", "By", "Size of the host's state in memory.", _HOST)
STATE_ENTRIES = _gauge("host.state.entries", "{entry}", "Entries of the host's state.", _HOST)
COURIERS = _gauge("couriers", "{courier}", "Long-lived couriers of a live flow that are up.")

FUNCTIONS = _gauge("functions", "{function}", "Burst workers that carry load.", _STEP)
OFFLOADED = _counter("offloaded.rows", "{row}", "Rows that burst workers processed.")

MOVED_SLOTS = _counter("moved.slots", "{slot}", "Slots that moved to another host.", _STEP)
PENDING_SLOTS = _gauge(
    "pending.slots", "{slot}", "Slots that are not yet where they should be.", _STEP
)
PARTIAL_SLOTS = _gauge("partial.slots", "{slot}", "Slots with entries still elsewhere.")
FETCHED_ENTRIES = _counter("fetched.entries", "{entry}", "Entries that moved with their slots.")
FETCHED_BYTES = _counter("fetched", "By", "Bytes of these entries.")
FETCHES = _counter("fetches", "{fetch}", "Round trips for entries that rows waited for.")
FETCH_WAIT = _counter("fetch.wait", "s", "Time that channels waited for state, over channels.")
LEFT_BEHIND = _gauge("left_behind.entries", "{entry}", "Entries that never had to move.")
EVICTED = _counter("evicted.entries", "{entry}", "Entries dropped from memory for lack of it.")

LATE_ROWS = _counter("late.rows", "{row}", "Rows that came behind a watermark.")
DEAD_LETTERS = _counter("dead_letters", "{row}", "Rows that failed and were set aside.")
HOT_KEYS = _gauge("hot_keys", "{key}", "Keys that are too much for one host.", _STEP)
TREATMENTS = _counter("treatments", "{treatment}", "Treatments begun.", ("step", "kind"))
PAUSED = _gauge("control.paused", "", "Whether decisions are not carried out: 1 or 0.")
MONEY = _counter("cost", "USD", "Cost since the start.", ("kind",))

METRICS = tuple(metric for metric in vars().copy().values() if isinstance(metric, Metric))
"""All of them, in the order of this page."""

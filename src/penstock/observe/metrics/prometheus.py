"""The metrics of a query as Prometheus scrapes them, with the official client."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from penstock.extensions import imported
from penstock.observe.metrics.catalog import METRICS, Metric
from penstock.observe.metrics.totals import Buckets, NewEntries, Recent, Sample, Totals
from penstock.observe.moment import Moment
from penstock.observe.recording import FlowFacts

if TYPE_CHECKING:
    from prometheus_client import Metric as Family


class PrometheusMetrics:
    """The metrics of one query. `take` is for `Recorder.watch`; `app` is the endpoint.

    `entries` returns the journal after a time (`Recording.entries`). Without it, treatments are not counted.
    """

    def __init__(self, facts: FlowFacts, entries: Recent | None = None) -> None:
        self._client = imported("prometheus_client", "dashboard", "the Prometheus endpoint")
        self._totals, self._journal = Totals(facts), NewEntries(entries)
        self._registry: Any = self._client.CollectorRegistry()
        self._registry.register(self)

    def take(self, moment: Moment) -> None:
        """Take in a moment. The recorder's thread calls this."""
        self._totals.take(moment, self._journal.until(moment.time_ms))

    def app(self) -> Any:
        """The ASGI application of the endpoint, for a route or a mount at /metrics."""
        return _Endpoint(self._client.make_asgi_app(self._registry))

    def collect(self) -> Iterator[Family]:
        """All metrics with their series. The client calls this for each scrape."""
        families = self._client.metrics_core
        facts, series = self._totals.facts, defaultdict[Metric, list[Sample]](list)
        for sample in self._totals.samples:
            series[sample.metric].append(sample)
        info = families.InfoMetricFamily("penstock_flow", "The query.", labels=["flow"])
        told = {"version": facts.version, "mode": facts.mode, "flow_id": facts.flow_id}
        info.add_metric([facts.name], told)
        yield info
        kinds = {
            "counter": families.CounterMetricFamily,
            "gauge": families.GaugeMetricFamily,
            "histogram": families.HistogramMetricFamily,
        }
        for metric in METRICS:
            labels = ["flow", *metric.labels]
            family = kinds[metric.kind](metric.family, metric.help, labels=labels)
            for sample in series[metric]:
                where, value = [facts.name, *sample.labels], sample.value
                if isinstance(value, Buckets):
                    family.add_metric(where, _cumulative(metric, value), value.sum)
                else:
                    family.add_metric(where, value)
            yield family


class _Endpoint:
    """The client's application as an object: a route takes a function for a handler of requests, not for an
    application. So `Route("/metrics", ...)` serves that very path, and a mount only /metrics/."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)


def _cumulative(metric: Metric, buckets: Buckets) -> Iterable[tuple[str, float]]:
    """Upper bound of each bucket, and the number of values up to it."""
    bounds = [*(f"{bound:g}" for bound in metric.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(buckets.counts)), strict=True))

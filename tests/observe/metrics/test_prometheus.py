"""The Prometheus endpoint: values, conventions, series that come and go."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from penstock.control.journal.entry import Entry
from penstock.control.money import Money
from penstock.model import SLA, LatencyBound
from penstock.observe.metrics.catalog import METRICS
from penstock.observe.metrics.prometheus import PrometheusMetrics
from penstock.observe.metrics.totals import MOST_HOSTS
from penstock.observe.moment import Moment, MomentMaker
from tests.observe.made_up import (
    FACTS,
    START_MS,
    control_facts,
    epoch,
    look,
    moved,
    recording,
)

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


MEAN, P99 = ((("bound", kind), ("step", "")) for kind in ("mean", "p99"))
"""Labels of a bound on the whole flow."""


def scraped(metrics: PrometheusMetrics) -> str:
    """The text that a scrape gets."""
    answer = TestClient(metrics.app()).get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return answer.text


def series(text: str) -> Series:
    """All series of a scrape without the label `flow`, which each must have."""
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("flow") == "clicks"
            found[sample.name, tuple(sorted(labels.items()))] = sample.value
    return found


def after(*moments: Moment, entries: Sequence[Entry] = ()) -> Series:
    metrics = PrometheusMetrics(FACTS, lambda since: [e for e in entries if e.time_ms > since])
    for moment in moments:
        metrics.take(moment)
    return series(scraped(metrics))


def moments(*hosts: Sequence[str]) -> list[Moment]:
    """A moment for each second, with these hosts."""
    maker = MomentMaker(START_MS)
    return [
        maker.make(look(second, names), [epoch(second, second)], 1, 1)
        for second, names in enumerate(hosts, 1)
    ]


def test_counters_add_up_and_gauges_are_those_of_the_newest_moment() -> None:
    burst = recording(30, burst=range(10, 15))
    found = after(*burst.moments())
    assert found["penstock_rows_total", ()] == 25 * 100 + 5 * 500
    assert found["penstock_sla_windows_total", MEAN] == 28
    assert found["penstock_sla_windows_kept_total", MEAN] == 23
    assert found["penstock_sla_latency_seconds", MEAN] == 1.0
    assert found["penstock_moved_slots_total", (("step", "clicks"),)] == 1
    assert found["penstock_fetched_bytes_total", ()] == 700
    assert found["penstock_hosts", (("step", "clicks"),)] == 2
    assert found["penstock_epoch", ()] == 30
    assert found["penstock_last_epoch_timestamp_seconds", ()] == START_MS / 1000 + 30
    assert found["penstock_state", (("state", "running"),)] == 1
    assert found["penstock_state", (("state", "failed"),)] == 0
    assert found["penstock_cost_usd_total", (("kind", "hosts"),)] == pytest.approx(0.03)


def test_each_bound_of_the_sla_has_series_with_its_own_figure() -> None:
    of_step = (("bound", "mean"), ("step", "clicks"))
    more = (LatencyBound(2_500, 2_000, p99=True), LatencyBound(100, 1_000, step="clicks"))
    burst = recording(30, burst=range(10, 15), sla=SLA(1_000, 1_000, more=more))
    found = after(*burst.moments())
    names = ("latency_seconds", "window_seconds", "reached_seconds", "windows_total")
    figures = {
        labels: [found[f"penstock_sla_{name}", labels] for name in names]
        for labels in (MEAN, P99, of_step)
    }
    assert figures == {
        MEAN: [1.0, 1.0, 0.2, 28],
        P99: [2.5, 2.0, 0.4, 14],
        of_step: [0.1, 1.0, 0.12, 28],
    }
    assert found["penstock_sla_windows_kept_total", P99] == 11
    assert found["penstock_sla_windows_kept_total", of_step] == 0


def test_the_histogram_of_latency_counts_rows() -> None:
    found = after(*recording(10).moments())
    assert found["penstock_latency_seconds_count", ()] == 1000
    assert found["penstock_latency_seconds_sum", ()] == pytest.approx(1000 * 0.2)
    assert found["penstock_latency_seconds_bucket", (("le", "0.1"),)] == 0
    assert found["penstock_latency_seconds_bucket", (("le", "0.25"),)] == 1000
    assert found["penstock_latency_seconds_bucket", (("le", "+Inf"),)] == 1000


def test_the_phases_of_an_epoch_add_up_to_its_duration() -> None:
    found = after(*recording(4).moments())
    phases = {
        phase: found["penstock_epoch_phase_seconds_sum", (("phase", phase),)]
        for phase in ("read", "process", "seal")
    }
    assert phases == pytest.approx({"read": 4 * 0.09, "process": 4 * 0.06, "seal": 4 * 0.02})
    assert found["penstock_epoch_duration_seconds_sum", ()] == pytest.approx(sum(phases.values()))


def test_a_host_that_is_gone_loses_its_series_and_begins_with_0_again() -> None:
    two, one = ("clicks/0", "clicks/1"), ("clicks/1",)
    gone = after(*moments(two, two, one))
    assert not [labels for _, labels in gone if ("host", "clicks/0") in labels]
    back = after(*moments(two, two, one, two))
    of = (("host", "clicks/0"), ("step", "clicks"))
    assert back["penstock_host_rows_total", of] == 50
    assert after(*moments(two, two))["penstock_host_rows_total", of] == 100


def test_a_lost_host_is_counted_once_and_a_host_that_is_given_up_is_not() -> None:
    two, maker = ("clicks/0", "clicks/1"), MomentMaker(START_MS)
    up = maker.make(look(1, two), [], 0, 0)
    down = maker.make(look(2, two, hosts_up={"clicks/0": 100}), [], 0, 0)
    still = maker.make(look(3, two, hosts_up={"clicks/0": 100}), [], 0, 0)
    fewer = maker.make(look(4, ("clicks/0",)), [], 0, 0)
    of = "penstock_host_losses_total", (("step", "clicks"),)
    assert after(up)[of] == 0
    assert after(up, down, still, fewer)[of] == 1
    assert after(up, fewer)[of] == 0
    back = moved(4, 5)
    handovers = tuple(replace(handover, why="host lost") for handover in back.handovers)
    quick = maker.make(look(5), [epoch(1, 5, migration=replace(back, handovers=handovers))], 0, 0)
    assert after(up, quick)[of] == 1


def test_slots_that_get_their_first_host_have_not_moved() -> None:
    start = moved(0, 1, 2)
    first = replace(start, handovers=tuple(replace(h, why="start") for h in start.handovers))
    maker = MomentMaker(START_MS)
    begun = maker.make(look(1), [epoch(0, 1, migration=first)], 0, 0)
    later = maker.make(look(2), [epoch(1, 2, migration=moved(5, 6))], 0, 0)
    of = "penstock_moved_slots_total", (("step", "clicks"),)
    assert after(begun)[of] == 0
    assert after(begun, later)[of] == 2


def test_treatments_are_counted_by_kind_from_the_journal_each_once() -> None:
    kinds = [{"kind": "scale_out"}, {"kind": "scale_out"}, {"kind": "balance"}]
    began = Entry(START_MS + 1_500, 1, "clicks", "began", "", {"treatments": kinds})
    decided = Entry(START_MS + 1_400, 1, "clicks", "decided", "", {"treatments": kinds})
    found = after(*recording(30).moments(), entries=[decided, began])
    of = "penstock_treatments_total"
    assert found[of, (("kind", "scale_out"), ("step", "clicks"))] == 2
    assert found[of, (("kind", "balance"), ("step", "clicks"))] == 1


def test_the_number_of_series_is_bounded() -> None:
    many = [f"clicks/{n}" for n in range(2 * MOST_HOSTS)]
    found = after(*moments(many))
    assert len([1 for name, _ in found if name == "penstock_host_up"]) == MOST_HOSTS
    assert found["penstock_hosts", (("step", "clicks"),)] == 2 * MOST_HOSTS


def test_a_query_that_has_just_started_has_its_counters_at_0() -> None:
    found = series(scraped(PrometheusMetrics(FACTS)))
    assert found["penstock_rows_total", ()] == 0
    assert found["penstock_dead_letters_total", ()] == 0
    assert found["penstock_latency_seconds_count", ()] == 0
    assert "penstock_hosts" not in {name for name, _ in found}


def test_the_info_metric_has_version_and_mode() -> None:
    text = scraped(PrometheusMetrics(replace(FACTS, version="1.2.3")))
    assert 'flow="clicks",flow_id="f1",mode="micro_batch",version="1.2.3"} 1.0' in text


def test_a_route_serves_the_very_path_that_prometheus_asks_for() -> None:
    app = Starlette(routes=[Route("/metrics", PrometheusMetrics(FACTS).app())])
    answer = TestClient(app).get("/metrics", follow_redirects=False)
    assert answer.status_code == 200
    assert "penstock_flow_info" in answer.text


def every_metric() -> Moment:
    """A moment in which each metric has a value."""
    now = look(1, control=control_facts(("clicks/0", "clicks/1")), money=Money(1.0, 2.0))
    return MomentMaker(START_MS).make(now, [epoch(1, 1.0, migration=moved(3))], 1, 1)


def all_series() -> tuple[str, Series]:
    """A scrape of a query in which each metric has a value."""
    kinds = [{"kind": "balance"}]
    began = Entry(START_MS - 9_000, 1, "clicks", "began", "", {"treatments": kinds})
    metrics = PrometheusMetrics(FACTS, lambda since: [began] if since == 0 else [])
    metrics.take(every_metric())
    text = scraped(metrics)
    return text, series(text)


def test_every_metric_of_the_catalog_can_be_scraped() -> None:
    names = {name for name, _ in all_series()[1]}
    ends = {"counter": "", "gauge": "", "histogram": "_bucket"}
    assert [m.name for m in METRICS if m.prometheus + ends[m.kind] not in names] == []


def test_promtool_finds_no_fault_with_the_endpoint() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    text, _ = all_series()
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, text=True, capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout + checked.stderr == ""

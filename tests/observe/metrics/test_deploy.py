"""The Grafana dashboard and the alert rules: they name metrics that exist, and promtool accepts them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.observe.metrics.catalog import METRICS
from tests.observe.metrics.test_prometheus import all_series

ROOT = Path(__file__).parents[3]
GRAFANA = ROOT / "deploy" / "grafana" / "penstock.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
ANCHORS = {
    "sla-missed", "hot-key", "host-keeps-dying", "backlog-grows", "checkpoint-refused", "disk-grows",
    "dead-letters", "no-new-epoch",
}  # fmt: skip
"""Sections of docs/runbook.md."""


def expressions(found: Any) -> Iterator[str]:
    """All queries of a dashboard."""
    if isinstance(found, dict):
        for name, value in found.items():
            if name in ("expr", "definition") and isinstance(value, str):
                yield value
            yield from expressions(value)
    elif isinstance(found, list):
        for value in found:
            yield from expressions(value)


def names(text: str) -> set[str]:
    return set(re.findall(r"\bpenstock_[a-z0-9_]+", text))


def test_the_dashboard_and_the_alerts_name_metrics_that_exist() -> None:
    there = {name for name, _ in all_series()[1]}
    shown = names(" ".join(expressions(json.loads(GRAFANA.read_text()))))
    assert len(shown) > 25
    assert shown - there == set()
    told = names(ALERTS.read_text())
    assert len(told) > 10
    assert told - there == set()


def test_labels_of_the_dashboard_exist() -> None:
    labels = {name for _, series in all_series()[1] for name, _ in (dict(series).items())}
    used = re.findall(r"\{\{\s*(\w+)\s*\}\}", GRAFANA.read_text())
    assert set(used) - labels == set()


def test_panels_do_not_overlap_and_each_says_what_it_shows() -> None:
    panels = json.loads(GRAFANA.read_text())["panels"]
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        mine = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not mine & cells, panel["title"]
        assert max(x for x, _ in mine) < 24
        cells |= mine
        assert panel["type"] == "row" or panel["description"].endswith(".")
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_every_metric_and_every_alert_is_on_the_page() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    lines = [f"| `{m.prometheus}` | {m.kind} | " for m in METRICS]
    assert [line for line in lines if line not in page] == []
    assert [metric.help for metric in METRICS if f"| {metric.help} |" not in page] == []
    alerts = re.findall(r"- alert: (\w+)", ALERTS.read_text())
    assert [alert for alert in alerts if f"| `{alert}` |" not in page] == []


def test_every_alert_links_to_a_section_of_the_runbook() -> None:
    text = ALERTS.read_text()
    links = re.findall(r"runbook_url: https://penstock\.example/(\w+)\.html#([\w-]+)", text)
    assert len(links) == text.count("- alert:")
    assert {anchor for page, anchor in links if page == "runbook"} <= ANCHORS
    metrics = (ROOT / "docs" / "metrics.md").read_text()
    assert all(f"# {a.capitalize()}\n" in metrics for page, a in links if page == "metrics")
    assert "penstock.example" in metrics  # it says how to set the address


def test_what_a_planned_stop_looks_like_does_not_page() -> None:
    gone = ALERTS.read_text().split("- alert: PenstockQueryGone")[1].split("- alert:")[0]
    assert "severity: ticket" in gone
    assert re.search(r"for: \d+m", gone)


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", str(ALERTS)),
        ("test", "rules", str(Path(__file__).with_name("alerts_test.yml"))),
    ],
    ids=["check rules", "test rules"],
)
def test_promtool_accepts_the_alerts(arguments: tuple[str, ...]) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    run = subprocess.run(["promtool", *arguments], text=True, capture_output=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr

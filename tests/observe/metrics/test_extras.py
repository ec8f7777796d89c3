"""Metrics without their packages: what is missing is said, with its cure, before anything runs."""

from __future__ import annotations

import sys

import pytest

import penstock as ps
from penstock.errors import SettingError
from penstock.observe.metrics.prometheus import PrometheusMetrics
from tests.observe.made_up import FACTS


def test_telemetry_without_its_packages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    counts = ps.flow(ps.rate(100)).key_by("key").aggregate(n=ps.count())
    with pytest.raises(SettingError, match=r"pip install 'penstock\[otel\]'"):
        counts.start(ps.to("noop"), telemetry=True)


def test_the_endpoint_without_its_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(SettingError, match=r"pip install 'penstock\[dashboard\]'"):
        PrometheusMetrics(FACTS)

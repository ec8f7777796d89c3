"""Metrics and traces by OTLP over HTTP, against a receiver that decodes them."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock.observe.metrics import otel
from penstock.observe.metrics.otel import Telemetry
from penstock.observe.moment import MomentMaker
from tests.observe.made_up import FACTS, START_MS, epoch, look, recording
from tests.observe.metrics.otlp_receiver import Receiver, attributes, receiving


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Receiver:
    """What a receiver has got of a query of 30 seconds that has stopped."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        telemetry = Telemetry.of(FACTS, lambda _: [])
        for moment in recording(30, burst=range(10, 15)).moments():
            telemetry.take(moment)
        telemetry.stop()
    return receiver


def test_an_epoch_is_a_trace_with_a_span_for_each_phase(exported: Receiver) -> None:
    assert len(exported.spans) == 30 * 4
    whole = next(s for s in exported.spans if attributes(s).get("penstock.rows") == 500)
    assert whole.name == "epoch"
    assert whole.parent_span_id == b""
    told = attributes(whole)
    assert told["penstock.flow"] == "clicks"
    assert told["penstock.epoch"] == 10
    assert told["penstock.runs"] == 1
    assert told["penstock.latency.mean"] == 1.5
    start_ms = START_MS + 10_000 - 150
    phases = [span for span in exported.spans if span.parent_span_id == whole.span_id]
    assert {
        span.name: (span.start_time_unix_nano // 10**6, span.end_time_unix_nano // 10**6)
        for span in phases
    } == {
        "source and couriers": (start_ms, start_ms + 90),
        "hosts and sink": (start_ms + 90, start_ms + 150),
        "seal": (start_ms + 150, start_ms + 170),
    }
    assert {span.trace_id for span in phases} == {whole.trace_id}
    assert whole.end_time_unix_nano // 10**6 == start_ms + 170


def test_each_epoch_is_a_trace_of_its_own(exported: Receiver) -> None:
    assert len({span.trace_id for span in exported.spans}) == 30


def test_metrics_have_names_units_and_values(exported: Receiver) -> None:
    rows = exported.newest("penstock.rows")
    assert rows.unit == "{row}"
    assert rows.sum.is_monotonic
    (point,) = rows.sum.data_points
    assert (point.as_double, attributes(point)) == (5000, {"flow": "clicks"})
    busy = exported.newest("penstock.host.busy")
    assert busy.unit == "s"
    assert {attributes(p)["host"] for p in busy.sum.data_points} == {"clicks/0", "clicks/1"}
    (bound,) = exported.newest("penstock.sla.latency").gauge.data_points
    assert bound.as_double == 1.0


def test_durations_of_epochs_are_histograms(exported: Receiver) -> None:
    (whole,) = exported.newest("penstock.epoch.duration").histogram.data_points
    assert whole.count == 30
    assert whole.sum == pytest.approx(30 * 0.17)
    phases = exported.newest("penstock.epoch.phase").histogram.data_points
    assert {attributes(p)["phase"]: round(p.sum, 3) for p in phases} == {
        "read": 2.7,
        "process": 1.8,
        "seal": 0.6,
    }


def test_the_service_is_named_and_the_environment_adds_to_it(exported: Receiver) -> None:
    told = attributes(exported.resources[0])
    assert told["service.name"] == "penstock"
    assert told["deployment.environment"] == "test"


def test_one_signal_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        telemetry = Telemetry.of(FACTS, lambda _: [])
        telemetry.take(recording(1).moments()[0])
        telemetry.stop()
    assert receiver.metrics
    assert receiver.spans == []


def test_the_providers_of_the_application_are_used_and_left_open() -> None:
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(), MeterProvider([reader])
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    for _ in range(2):  # instruments are made once
        telemetry = Telemetry(FACTS, tracers, meters)
        telemetry.take(recording(1).moments()[0])
        telemetry.stop()
    assert [span.name for span in spans.get_finished_spans()].count("epoch") == 2
    assert "penstock.epoch.duration" in str(reader.get_metrics_data())
    assert "penstock.rows" not in str(reader.get_metrics_data())  # both queries have ended
    meters.shutdown()
    tracers.shutdown()


def test_two_queries_of_one_application_are_told_apart() -> None:
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader])
    names = ("clicks", "orders")
    both = [Telemetry(replace(FACTS, name=name), None, meters) for name in names]
    for telemetry in both:
        telemetry.take(recording(1).moments()[0])
    data = reader.get_metrics_data()
    assert data is not None
    (rows,) = [
        metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "penstock.rows"
    ]
    flows = [(point.attributes or {})["flow"] for point in rows.data.data_points]
    assert flows == ["clicks", "orders"]
    for telemetry in both:
        telemetry.stop()
    meters.shutdown()


def test_of_very_many_epochs_in_a_moment_the_slowest_are_traced() -> None:
    spans, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    epochs = [epoch(n, n / 100, sink_ms=float(n)) for n in range(100)]
    telemetry = Telemetry(FACTS, tracers, None)
    telemetry.take(MomentMaker(START_MS).make(look(1), epochs, 0, 0))
    whole = [span for span in spans.get_finished_spans() if span.name == "epoch"]
    assert {(span.attributes or {})["penstock.epoch"] for span in whole} == set(range(80, 100))
    tracers.shutdown()


def test_a_collector_that_is_down_costs_one_line_and_no_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free}")
    monkeypatch.setattr(otel, "_FLUSH_S", 1.0)
    telemetry = Telemetry.of(FACTS, lambda _: [])
    for moment in recording(30).moments():
        telemetry.take(moment)
    begun = time.monotonic()
    telemetry.stop()
    assert time.monotonic() - begun < 5.0
    lines = sorted(record.getMessage() for record in caplog.records)
    assert [line.split(":")[0] for line in lines] == [
        "Metrics cannot be exported",
        "Traces cannot be exported",
    ]
    assert "Connection refused" in lines[0]
    assert {record.name for record in caplog.records} == {"penstock.telemetry"}

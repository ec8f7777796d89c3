"""Metrics and traces by OTLP over HTTP, against a receiver that decodes them."""

from __future__ import annotations

import socket
import time
from bisect import bisect_left
from dataclasses import replace

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock.observe.metrics import otel
from penstock.observe.metrics.catalog import LATENCY
from penstock.observe.metrics.epoch_trace import epoch_tree
from penstock.observe.metrics.otel import RowSample, Telemetry
from penstock.observe.moment import EpochMoment, MomentMaker
from penstock.spans import Span
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


def test_an_epoch_of_a_live_flow_is_a_trace_with_a_span_for_each_phase(exported: Receiver) -> None:
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


def work(number: int, ended_s: float) -> tuple[Span, ...]:
    """What the processes of an epoch do that ends at that second, but for the end of courier 0."""
    begin_ms = START_MS + 1000 * ended_s - 150
    return (
        Span(number, "driver", "prepare", begin_ms, 5.0),
        Span(number, "driver", "write", begin_ms + 5, 145.0),
        Span(number, "driver", "seal", begin_ms + 150, 15.0),
        Span(number, "courier 0", "read", begin_ms + 20, 30.0),
        Span(number, "courier 0", "send", begin_ms + 50, 20.0),
        Span(number, "courier 0", "read", begin_ms + 70, 10.0),
        Span(number, "courier 1", "read", begin_ms + 25, 5.0),
        Span(number, "host clicks/0", "apply", begin_ms + 60, 30.0, channel=0),
        Span(number, "host clicks/0", "apply", begin_ms + 70, 30.0, channel=1),
        Span(number, "host clicks/1", "wait", begin_ms + 60, 10.0, channel=0),
    )


def late(number: int, ended_s: float) -> Span:
    """The end of courier 0, of which the driver hears with the next epoch."""
    return Span(number, "courier 0", "output", START_MS + 1000 * ended_s - 40, 10.0)


def test_an_epoch_has_spans_of_source_couriers_hosts_sink_and_seal() -> None:
    spans, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    telemetry, maker = Telemetry(FACTS, tracers, None), MomentMaker(START_MS)
    first = epoch(1, 1.0, spans=work(1, 1.0))
    telemetry.take(maker.make(look(1), [first], 0, 0))
    assert spans.get_finished_spans() == ()  # its last spans come with the next epoch
    second = epoch(2, 2.0, spans=(late(1, 1.0), *work(2, 2.0)))
    telemetry.take(maker.make(look(2), [second], 0, 0))
    found = {span.name: span for span in spans.get_finished_spans()}
    begin_ms = START_MS + 850
    times = {
        name: tuple(round((at or 0) / 1e6 - begin_ms, 2) for at in (s.start_time, s.end_time))
        for name, s in found.items()
    }
    assert times == {
        "epoch": (0.0, 170.0),
        "prepare": (0.0, 5.0),
        "source": (20.0, 80.0),
        "couriers": (20.0, 120.0),
        "courier 0": (20.0, 120.0),
        "courier 1": (25.0, 30.0),
        "hosts": (60.0, 100.0),
        "host clicks/0": (60.0, 100.0),
        "host clicks/1": (60.0, 70.0),
        "sink": (110.0, 150.0),
        "seal": (150.0, 165.0),
    }
    above = {name: s.parent and s.parent.span_id for name, s in found.items()}
    whole, hosts = found["epoch"].get_span_context(), found["hosts"].get_span_context()
    assert whole is not None
    assert hosts is not None
    assert above["epoch"] is None
    assert {above[name] for name in ("source", "couriers", "hosts", "sink", "seal")} == {
        whole.span_id
    }
    assert above["host clicks/1"] == hosts.span_id
    assert len({(s.get_span_context() or whole).trace_id for s in found.values()}) == 1
    told = found["courier 0"].attributes or {}
    assert (told["penstock.work.read"], told["penstock.work.send"]) == (0.04, 0.02)
    assert (found["host clicks/0"].attributes or {})["penstock.work.apply"] == 0.06
    spans.clear()
    telemetry.stop()
    assert [s.name for s in spans.get_finished_spans()].count("epoch") == 1
    tracers.shutdown()


def test_of_very_many_processes_those_that_worked_longest_have_spans() -> None:
    many = [Span(1, f"host clicks/{n}", "apply", START_MS, float(n)) for n in range(100)]
    tree = epoch_tree(EpochMoment(1, 1, 9, int(START_MS), 0.0, 200.0, 0.0, None), many)
    (hosts,) = tree.pieces
    assert {piece.name for piece in hosts.pieces} == {f"host clicks/{n}" for n in range(68, 100)}
    assert hosts.work_ms == {"apply": sum(range(100))}


def test_latencies_of_rows_are_a_histogram(exported: Receiver) -> None:
    (rows,) = exported.newest("penstock.latency").histogram.data_points
    assert rows.count == 25 * 100 + 5 * 500
    assert list(rows.explicit_bounds) == list(LATENCY.bounds)
    assert {n: count for n, count in enumerate(rows.bucket_counts) if count} == {5: 5_000}


def test_of_very_many_rows_each_bucket_has_its_share() -> None:
    sample, counts = RowSample(LATENCY.bounds), [0] * 14
    for _ in range(50):
        for latency_s in sample.latencies([0, 99_990, 0, 10, *[0] * 10]):
            counts[bisect_left(LATENCY.bounds, latency_s)] += 1
    assert counts[1] == pytest.approx(50_000, abs=10)
    assert counts[3] == pytest.approx(5, abs=1)


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

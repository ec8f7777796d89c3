"""The AWS Lambda backend: the real client over HTTP, against a stand-in that runs the real handler."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import FlowError, SettingError
from penstock.offload.backends.aws import handler
from penstock.offload.backends.aws.backend import LambdaFunctions, LambdaInvoker, request_limit
from penstock.offload.backends.aws.handler import Handler
from penstock.offload.backends.backend import Failure, WorkerFailed
from penstock.offload.backends.messages import Requests, WorkerAnswer
from penstock.offload.backends.package import flow_named, package
from penstock.offload.backends.worker import BurstWorker
from penstock.operators.operator import PARTIALS, EpochTime
from penstock.wire.access import Access
from tests.offload.backends import flows
from tests.offload.backends.flows import counting, doubled, request, slow_or_wrong
from tests.offload.backends.lambda_stand_in import (
    PAYLOAD_LIMIT,
    Fault,
    InProcess,
    LambdaStandIn,
    Unpacked,
)

FLOW = counting(doubled)
packaged = counting(slow_or_wrong)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


@pytest.fixture
def stand_in() -> Iterator[LambdaStandIn]:
    with LambdaStandIn("flow", lambda: InProcess(Handler(BurstWorker(FLOW)))) as stand_in:
        yield stand_in


def invoker(stand_in: LambdaStandIn, payload_limit: int = PAYLOAD_LIMIT) -> LambdaInvoker:
    return LambdaInvoker("flow", "eu-central-1", stand_in.url, payload_limit)


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        ("throttle", "throttled"),
        ("hang", "timeout"),
        ("error", "failed"),
        ("kill", "failed"),
        ("garbage", "failed"),
        ("timed out", "timeout"),
    ],
)
def test_failures_are_reported_and_not_retried(
    stand_in: LambdaStandIn, fault: Fault, failure: Failure
) -> None:
    body, way = request(FLOW, ("a", 1)).to_bytes(), invoker(stand_in)
    stand_in.faults.append(fault)
    with pytest.raises(WorkerFailed) as raised:
        way.invoke(body, 400)
    assert raised.value.failure == failure
    assert len(stand_in.asked) == 1
    assert way.invoke(body, 5_000)
    used = way.taken()
    assert (used.throttled, used.failed) == ((1, 0) if fault == "throttle" else (0, used.failed))
    assert way.taken().invocations == 0


def test_requests_are_signed(stand_in: LambdaStandIn) -> None:
    invoker(stand_in).invoke(request(FLOW, ("a", 1)).to_bytes(), 5_000)
    [headers] = stand_in.asked
    assert "/eu-central-1/lambda/aws4_request" in headers["Authorization"]


def test_a_cold_start_is_counted_once(stand_in: LambdaStandIn) -> None:
    way = invoker(stand_in)
    for _ in range(3):
        way.invoke(request(FLOW, ("a", 1)).to_bytes(), 5_000)
    used = way.taken()
    assert (used.invocations, used.cold_starts, stand_in.started) == (3, 1, 1)
    assert used.cold_start_ms > 0


def test_a_request_that_fits_the_limit_passes_and_a_larger_one_is_not_sent(
    stand_in: LambdaStandIn,
) -> None:
    way = invoker(stand_in)
    assert way.request_limit == request_limit(PAYLOAD_LIMIT)
    with pytest.raises(WorkerFailed) as raised:
        way.invoke(b"x" * way.request_limit, 5_000)
    assert raised.value.failure == "failed"  # it arrived, but is not a valid request
    with pytest.raises(WorkerFailed) as raised:
        way.invoke(b"x" * (way.request_limit + 1), 5_000)
    assert raised.value.failure == "too_large"
    assert len(stand_in.asked) == 1


def test_lambda_itself_refuses_what_is_too_large(stand_in: LambdaStandIn) -> None:
    with pytest.raises(WorkerFailed) as raised:
        invoker(stand_in, 2 * PAYLOAD_LIMIT).invoke(b"x" * PAYLOAD_LIMIT, 5_000)
    assert raised.value.failure == "too_large"


def test_an_answer_that_is_too_large_is_reported(
    stand_in: LambdaStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "ANSWER_LIMIT", 100)
    with pytest.raises(WorkerFailed) as raised:
        invoker(stand_in).invoke(request(FLOW, ("a", 1)).to_bytes(), 5_000)
    assert raised.value.failure == "too_large"


def test_an_unknown_endpoint_or_function_fails(stand_in: LambdaStandIn) -> None:
    nobody = LambdaInvoker("flow", "eu-central-1", "http://127.0.0.1:1")
    with pytest.raises(WorkerFailed) as raised:
        nobody.invoke(b"", 2_000)
    assert raised.value.failure == "failed"
    other = LambdaInvoker("other", "eu-central-1", stand_in.url)
    with pytest.raises(WorkerFailed, match="ResourceNotFound"):
        other.invoke(b"", 2_000)


def test_without_boto3_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(SettingError, match=r"penstock\[aws\]"):
        LambdaFunctions("flow").start(FLOW, "run", Access("token"))


def test_a_packed_flow_runs_from_the_archive_alone(tmp_path: Path) -> None:
    """The process has Penstock and the user's code only from the archive."""
    archive, folder = tmp_path / "functions.zip", tmp_path / "task"
    packed = package(packaged, archive, [flows.__name__])
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(folder)
        assert sum(info.file_size for info in opened.infolist()) == packed.unpacked_bytes
    assert not packed.fits
    (folder / "kernels").mkdir()
    (folder / "kernels" / "compiled").touch()
    asked = request(packaged, ("a", 1), ("b", 2), ("a", 4))
    start = lambda: Unpacked(folder, str(tmp_path / "kernels"))  # noqa: E731
    with LambdaStandIn("flow", start) as stand_in:
        way = invoker(stand_in)
        got = WorkerAnswer.from_bytes(way.invoke(asked.to_bytes(), 120_000), asked)
        stand_in.faults.append("kill")
        with pytest.raises(WorkerFailed, match="Runtime exited"):
            way.invoke(asked.to_bytes(), 10_000)
    [partials] = got.batches
    assert partials.column("sum(v)").to_pylist() == [10, 4]
    assert (tmp_path / "kernels" / "compiled").exists()  # where Lambda lets it write


def test_a_packed_flow_has_the_users_aggregates_and_processors(tmp_path: Path) -> None:
    archive, folder = tmp_path / "functions.zip", tmp_path / "task"
    flow = flows.users()
    package(flow, archive, [flows.__name__])
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(folder)
    product, longest, join = flow.keyed
    some = flows.rows(("a", 3), ("b", 2), ("a", 4))
    tagged = [join.plan.all_inputs.pack(input, some) for input in (0, 1)]
    start = lambda: Unpacked(folder, str(tmp_path / "kernels"))  # noqa: E731
    with LambdaStandIn("flow", start) as stand_in:
        way, got = invoker(stand_in), {}
        for step, batches in ((product, [some]), (longest, [some]), (join, tagged)):
            asked = Requests.of(flow, [step], EpochTime(0, 0), step.id).one(0, batches)
            answer = WorkerAnswer.from_bytes(way.invoke(asked.to_bytes(), 120_000), asked)
            got[step.id] = [row for batch in answer.batches for row in batch.to_pylist()]
            assert answer.kind == PARTIALS
    assert [row["aggregator(product) value"] for row in got["product"]] == [12, 2]
    assert [row["most.v"] for row in got["longest"]] == [4, 2]
    assert [len(row["__bag"]) for row in got["pairs"]] == [2, 1, 2, 1]


def test_a_flow_is_found_by_name() -> None:
    assert flow_named(f"{__name__}:packaged") is packaged
    for name, message in [
        ("tests.offload.backends.flows", "does not name a flow"),
        ("tests.offload.backends.flows:nothing", "cannot import"),
        ("tests.offload.backends.flows:SCHEMA", "not a flow"),
    ]:
        with pytest.raises(FlowError, match=message):
            flow_named(name)


def test_the_handler_keeps_busy_when_it_is_to_be_warmed() -> None:
    handle = Handler(BurstWorker(FLOW))
    first, second = handle({"warm": 30}), handle({"warm": 0})
    assert (first["cold"], second["cold"]) == (True, False)
    assert first["ms"] >= 30 > second["ms"]
    assert json.dumps(first)

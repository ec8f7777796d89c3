"""Contract tests for all backends of burst workers."""

from __future__ import annotations

import importlib
import os
import pickle
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import cloudpickle
import pytest

from penstock import errors
from penstock.offload.backends.aws.backend import LambdaFunctions
from penstock.offload.backends.aws.handler import Handler
from penstock.offload.backends.backend import (
    Backend,
    BurstWorkers,
    Failure,
    Invoker,
    WorkerFailed,
    checked,
    invoker_at,
)
from penstock.offload.backends.http.backend import HttpFunctions
from penstock.offload.backends.local.backend import LocalFunctions
from penstock.offload.backends.messages import WorkerAnswer
from penstock.offload.backends.worker import BurstWorker
from penstock.wire.access import Access
from tests.examples import FOLDER
from tests.offload.backends.flows import counting, request, slow_or_wrong
from tests.offload.backends.http_platform import Platform
from tests.offload.backends.lambda_stand_in import InProcess, LambdaStandIn
from tests.offload.backends.waiting import until

FLOW = counting(slow_or_wrong)
AT_MOST = 3


@dataclass
class Place:
    access: Access
    started: BurstWorkers
    invoker: Invoker

    def asked(self, *pairs: tuple[str | None, int], timeout_ms: int = 20_000) -> WorkerAnswer:
        sent = request(FLOW, *pairs)
        return WorkerAnswer.from_bytes(self.invoker.invoke(sent.to_bytes(), timeout_ms), sent)

    def failure(self, *pairs: tuple[str | None, int], timeout_ms: int = 20_000) -> Failure:
        with pytest.raises(WorkerFailed) as raised:
            self.asked(*pairs, timeout_ms=timeout_ms)
        return raised.value.failure


@contextmanager
def backend_of(name: str) -> Iterator[Backend]:
    if name == "local":
        yield LocalFunctions(at_most=AT_MOST)
        return
    if name == "http":
        with Platform(FLOW, "key", AT_MOST) as platform:
            yield HttpFunctions(platform.url, "key", at_most=AT_MOST)
        return
    if name == "own":
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(FOLDER)
            yield importlib.import_module("own_functions").SocketFunctions(AT_MOST)
        return
    with (
        pytest.MonkeyPatch.context() as patch,
        LambdaStandIn("flow", lambda: InProcess(Handler(BurstWorker(FLOW))), AT_MOST) as stand_in,
    ):
        patch.setitem(os.environ, "AWS_ACCESS_KEY_ID", "test")
        patch.setitem(os.environ, "AWS_SECRET_ACCESS_KEY", "test")
        yield LambdaFunctions("flow", "eu-central-1", stand_in.url, AT_MOST)


@pytest.fixture(scope="module", params=["local", "lambda", "http", "own"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with ExitStack() as stack:
        backend = stack.enter_context(backend_of(request.param))
        checked(backend)
        assert backend.at_most == AT_MOST
        started = backend.start(FLOW, "run", Access("token"))
        stack.callback(started.stop)
        # a courier gets a copy, inside the function that Spark ships
        shipped = pickle.loads(cloudpickle.dumps(Access("token", functions=backend)))
        invoker = invoker_at(started.reach, shipped)
        stack.callback(invoker.close)
        yield Place(shipped, started, invoker)


def test_a_burst_worker_answers(place: Place) -> None:
    [partials] = place.asked(("a", 1), ("b", 2), ("a", 3)).batches
    assert partials.column("sum(v)").to_pylist() == [8, 4]


def test_the_reach_text_is_one_line_and_makes_the_invoker(place: Place) -> None:
    text = place.started.reach
    assert invoker_at(text, place.access) is place.invoker
    assert "\n" not in text


def test_a_row_that_fails_fails_the_invocation_and_no_more(place: Place) -> None:
    assert place.failure(("a", 1), ("wrong", 1)) == "failed"
    assert place.asked(("a", 1)).batches


def test_a_burst_worker_that_takes_too_long_times_out(place: Place) -> None:
    assert place.failure(("slow", 3_000), timeout_ms=300) == "timeout"
    assert place.asked(("a", 1)).batches


def test_requests_beyond_the_limit_are_refused(place: Place) -> None:
    with ThreadPoolExecutor(3 * AT_MOST) as threads:

        def outcome(_: int) -> str:
            try:
                place.asked(("slow", 2_000))
            except WorkerFailed as failed:
                return failed.failure
            return "answered"

        outcomes = list(threads.map(outcome, range(3 * AT_MOST)))
    # a worker that hung in an earlier test may still be busy
    assert AT_MOST - 1 <= outcomes.count("answered") <= AT_MOST
    assert outcomes.count("answered") + outcomes.count("throttled") == len(outcomes)
    assert place.asked(("a", 1)).batches


def test_usage_is_counted(place: Place) -> None:
    def used() -> tuple[int, int, float, float]:
        place.started.note(place.invoker.taken())
        now = place.started.used()
        return now.invocations, now.failed, now.seconds, now.money

    before = used()
    place.asked(("slow", 200))
    place.failure(("wrong", 1))
    after = used()
    assert (after[0] - before[0], after[1] - before[1]) == (2, 1)
    assert 0.2 <= after[2] - before[2] < 2.0
    assert after[3] - before[3] > 0.2 * 1769 / 1024 * 0.0000166667


def test_warm_burst_workers_are_started_ahead(place: Place) -> None:
    place.started.warm(AT_MOST)
    if type(place.started).__name__ == "SocketWorkers":
        return  # its threads need no start
    until(lambda: place.started.used().cold_starts >= AT_MOST)


def test_an_error_says_how_it_failed_wherever_it_is_read() -> None:
    error = WorkerFailed("busy", failure="throttled")
    for again in (pickle.loads(pickle.dumps(error)), errors.from_wire(errors.to_wire(error))):
        assert isinstance(again, WorkerFailed)
        assert (again.failure, str(again)) == ("throttled", "busy")


def test_a_courier_without_a_backend_says_so() -> None:
    with pytest.raises(errors.ProtocolError, match="this courier has no backend"):
        invoker_at("somewhere", Access("token"))


def test_an_object_without_the_interface_is_refused() -> None:
    with pytest.raises(errors.SettingError, match="has no connect"):
        checked(SimpleNamespace(at_most=1, price=0, speed=1, start_ms=0, start=print))
    lock = SimpleNamespace(**vars(LocalFunctions()), start=print, connect=threading.Lock())
    with pytest.raises(errors.SettingError, match="cannot be sent to couriers"):
        checked(lock)


def test_invokers_of_old_runs_are_closed() -> None:
    texts = [f"grpc://127.0.0.1:{port} run" for port in range(1, 20)]
    access = Access("token", functions=LocalFunctions())
    made = {text: weakref.ref(invoker_at(text, access)) for text in texts}
    assert invoker_at(texts[-1], access) is made[texts[-1]]()
    assert sum(invoker() is not None for invoker in made.values()) <= 8

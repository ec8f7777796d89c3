"""A courier's invocations: concurrency, deadline, and handling of answers."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import pyarrow as pa
import pytest

from penstock.offload.backends.backend import WorkerFailed
from penstock.offload.backends.messages import Request, Requests, WorkerAnswer, cut_evenly
from penstock.offload.backends.worker import BurstWorker
from penstock.offload.courier.health import Health
from penstock.offload.courier.profile import Profiled, Profiler
from penstock.offload.courier.questions import Invocations
from penstock.operators.operator import EpochTime
from penstock.wire.report import Usage
from tests.offload.backends.flows import counting, doubled, request, rows
from tests.offload.backends.waiting import until

FLOW = counting(doubled)
WORK = BurstWorker(FLOW)
REQUESTS = Requests.of(FLOW, FLOW.steps, EpochTime(0, 0), "test")
BATCH = rows(*((f"k{n}", n) for n in range(12)))


class Asked:
    """Burst workers whose behaviour depends on the number of the request."""

    request_limit: int | None = None

    def __init__(self, does: Callable[[int, bytes], bytes]) -> None:
        self.does = does
        self.most = self.now = 0
        self.timeouts: list[int] = []
        self._lock = threading.Lock()

    def invoke(self, request: bytes, timeout_ms: int) -> bytes:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.timeouts.append(timeout_ms)
        try:
            return self.does(int(Request.from_bytes(request).id.split("-")[1]), request)
        finally:
            with self._lock:
                self.now -= 1

    def close(self) -> None: ...

    def taken(self) -> Usage:
        return Usage()


def asked(parts: int) -> list[Request]:
    return REQUESTS.cut(cut_evenly([BATCH], parts), None)


def total(answer: WorkerAnswer) -> int:
    return sum(row["sum(v)"] for batch in answer.batches for row in batch.to_pylist())


def test_concurrency_is_limited() -> None:
    together = threading.Barrier(3)

    def does(number: int, request: bytes) -> bytes:
        together.wait(10)
        return WORK.answer(request)

    workers = Asked(does)
    made = dict(Invocations(workers, asked(6), total, 3, 10_000).finished())
    assert workers.most == 3
    assert sum(result or 0 for result in made.values()) == 2 * sum(range(12))
    assert all(0 < timeout <= 10_000 for timeout in workers.timeouts)


def test_late_answers_are_ignored() -> None:
    late, gone = threading.Event(), threading.Event()

    def does(number: int, request: bytes) -> bytes:
        if number == 1:
            late.wait(10)
            gone.set()
        return WORK.answer(request)

    invocations = Invocations(Asked(does), asked(3), total, 3, 300)
    made = dict(invocations.finished())
    late.set()
    assert gone.wait(10)
    assert sorted(made) == [0, 1, 2]
    assert made[1] is None
    assert None not in (made[0], made[2])
    assert invocations.failures == {"timeout": 1}
    assert 300 <= invocations.wait_ms < 5_000


def test_requests_without_a_free_worker_in_time_are_not_sent() -> None:
    late = threading.Event()
    workers = Asked(lambda number, request: WORK.answer(request) if late.wait(10) else b"")
    invocations = Invocations(workers, asked(4), total, 1, 100)
    assert [result for _, result in invocations.finished()] == [None] * 4
    late.set()
    assert invocations.failures == {"timeout": 4}
    assert len(workers.timeouts) == 1


def test_every_kind_of_failure_is_counted() -> None:
    def does(number: int, request: bytes) -> bytes:
        if number == 0:
            raise WorkerFailed("all are busy", failure="throttled")
        if number == 1:
            raise OSError("the network is gone")
        if number == 6:
            raise WorkerFailed("a request of 9 MB", failure="too_large")
        if number == 2:
            return b"garbage"
        if number == 3:  # the answer to another request
            return WORK.answer(REQUESTS.one(17, [BATCH]).to_bytes())
        return WORK.answer(request)

    def take(answer: WorkerAnswer) -> int:
        if answer.id == f"{REQUESTS.name}-4":
            raise KeyError("column")
        return total(answer)

    invocations = Invocations(Asked(does), asked(7), take, 7, 10_000)
    made = dict(invocations.finished())
    assert [number for number in sorted(made) if made[number] is not None] == [5]
    assert invocations.failures == {"throttled": 1, "failed": 4, "too_large": 1}


def test_burst_workers_that_hang_cost_one_deadline_until_a_probe_is_answered() -> None:
    well, health = threading.Event(), Health()

    def does(number: int, request: bytes) -> bytes:
        well.wait(20)
        return WORK.answer(request)

    workers = Asked(does)
    first = Invocations(workers, asked(2), total, 2, 300, health)
    assert [result for _, result in first.finished()] == [None, None]
    assert first.wait_ms >= 300
    for _ in range(3):  # other segments, tasks and epochs of the same process
        later = Invocations(workers, asked(2), total, 2, 2_000, health)
        assert [result for _, result in later.finished()] == [None, None]
        assert later.wait_ms < 1_000
        assert later.failures == {"timeout": 2}
    until(lambda: len(workers.timeouts) == 3)  # two requests, and one probe
    well.set()
    until(lambda: not health.hung)
    again = Invocations(workers, asked(2), total, 2, 10_000, health)
    assert None not in dict(again.finished()).values()


def test_one_burst_worker_that_hangs_does_not_stop_the_others() -> None:
    over, health = threading.Event(), Health()

    def does(number: int, request: bytes) -> bytes:
        if number == 0:
            over.wait(10)
        return WORK.answer(request)

    for _ in range(2):
        made = dict(Invocations(Asked(does), asked(3), total, 3, 300, health).finished())
        assert [number for number, result in made.items() if result is None] == [0]
    over.set()


def test_an_answered_request_is_done_again_now_and_then_to_compare_both_sides() -> None:
    now, cpu = [0.0], itertools.count(0.0, 0.004)
    profiler = Profiler(lambda: now[0], lambda: next(cpu))
    [request] = asked(1)
    for at in (0.0, 1.0, 40.0):
        now[0] = at
        profiler.note(FLOW, "count-2", request.to_bytes(), worker_ms=8.0)
        profiler.run()
    profiled = profiler.taken("count-2")
    assert profiled.here_ms == pytest.approx(8.0)
    assert profiled.workers_ms == 16.0
    assert profiler.taken("count-2") == profiler.taken("other") == Profiled()


def test_an_answer_says_how_much_cpu_it_took() -> None:
    def busy(batch: pa.RecordBatch) -> pa.RecordBatch:
        until_s = time.thread_time() + 0.02
        while time.thread_time() < until_s:
            pass
        return batch

    flow = counting(busy)
    sent = request(flow, ("a", 1))
    plain, slow = (
        WorkerAnswer.from_bytes(BurstWorker(flow, speed).answer(sent.to_bytes()), sent)
        for speed in (1.0, 0.5)
    )
    assert 20 <= plain.cpu_ms < 30
    assert 40 <= slow.cpu_ms < 60


@pytest.mark.parametrize("parts", [1, 3, 12, 50])
def test_rows_are_cut_evenly_and_in_order(parts: int) -> None:
    cut = cut_evenly([BATCH.slice(0, 5), BATCH.slice(5)], parts)
    assert len(cut) == min(parts, 12)
    sizes = [sum(batch.num_rows for batch in part) for part in cut]
    assert max(sizes) - min(sizes) <= 1
    assert pa.concat_batches([batch for part in cut for batch in part]) == BATCH

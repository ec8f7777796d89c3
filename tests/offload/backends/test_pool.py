"""The pool of local burst workers, with fake workers and a fake clock."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from penstock.offload.backends.backend import WorkerFailed
from penstock.offload.backends.local.pool import WorkerPool


class Made:
    """A fake burst worker that behaves as its request says."""

    numbers = itertools.count(1)

    def __init__(self) -> None:
        self.pid, self.ended = next(Made.numbers), False

    def answer(self, request: bytes, until: float) -> bytes:
        errors: dict[bytes, Callable[[], Exception]] = {
            b"die": EOFError,
            b"hang": TimeoutError,
            b"fail": lambda: WorkerFailed("its code failed"),
        }
        if request in errors:
            raise errors[request]()
        return request

    def end(self) -> None:
        self.ended = True


class Trial:
    def __init__(self, at_most: int = 2) -> None:
        self.now, self.made = 0.0, list[Made]()
        self.pool = WorkerPool(self.start, at_most, idle_ms=1_000, clock=lambda: self.now)

    def start(self) -> Made:
        self.now += 0.25
        self.made.append(Made())
        return self.made[-1]

    def failure(self, request: bytes) -> str:
        with pytest.raises(WorkerFailed) as raised:
            self.pool.invoke(request, 1_000)
        return raised.value.failure


def test_an_idle_worker_is_reused() -> None:
    trial = Trial()
    assert [trial.pool.invoke(body, 1_000) for body in (b"a", b"b")] == [b"a", b"b"]
    used = trial.pool.used
    assert (used.invocations, used.cold_starts, used.cold_start_ms) == (2, 1, 250.0)


@pytest.mark.parametrize(("request_", "failure"), [(b"die", "failed"), (b"hang", "timeout")])
def test_a_worker_that_dies_or_hangs_is_ended(request_: bytes, failure: str) -> None:
    trial = Trial(at_most=1)
    assert trial.failure(request_) == failure
    assert trial.made[0].ended
    assert not trial.pool.up
    assert trial.pool.invoke(b"a", 1_000) == b"a"
    assert len(trial.made) == 2
    assert (trial.pool.used.invocations, trial.pool.used.failed) == (2, 1)


def test_a_worker_whose_code_fails_stays() -> None:
    trial = Trial()
    assert trial.failure(b"fail") == "failed"
    assert trial.pool.up == {trial.made[0].pid: "idle"}
    assert trial.pool.used.failed == 1


def test_workers_that_are_idle_for_long_are_ended_except_warm_ones() -> None:
    trial = Trial()
    trial.pool.warm(2)
    trial.pool.tend()
    assert len(trial.pool.up) == 2
    trial.now += 10
    trial.pool.tend()
    assert len(trial.pool.up) == 2
    trial.pool.warm(1)
    trial.pool.tend()
    assert [made.ended for made in trial.made] == [True, False]
    trial.pool.warm(0)
    trial.pool.tend()
    assert not trial.pool.up


def test_no_more_are_kept_warm_than_the_limit() -> None:
    trial = Trial(at_most=2)
    trial.pool.warm(100)
    trial.pool.tend()
    assert len(trial.made) == 2


def test_requests_beyond_the_limit_are_refused_and_cost_nothing() -> None:
    trial = Trial(at_most=1)
    begun, ended = threading.Event(), threading.Event()

    def slowly(self: Made, request: bytes, until: float) -> bytes:
        begun.set()
        assert ended.wait(10)
        return request

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Made, "answer", slowly)
        thread = threading.Thread(target=trial.pool.invoke, args=(b"a", 1_000))
        thread.start()
        assert begun.wait(10)
        assert trial.failure(b"b") == "throttled"
        assert list(trial.pool.up.values()) == ["busy"]
        ended.set()
        thread.join()
    assert (trial.pool.used.invocations, trial.pool.used.throttled) == (1, 1)
    assert trial.pool.invoke(b"c", 1_000) == b"c"


def test_a_worker_that_does_not_start_frees_its_place() -> None:
    trial = Trial(at_most=1)
    start = trial.start

    def fails() -> Made:
        raise WorkerFailed("no memory")

    trial.pool._start = fails
    assert trial.failure(b"a") == "failed"
    trial.pool._start = start
    assert trial.pool.invoke(b"a", 1_000) == b"a"


def test_a_worker_that_starts_too_slowly_serves_the_next_request() -> None:
    trial = Trial()
    with pytest.raises(WorkerFailed) as raised:
        trial.pool.invoke(b"a", timeout_ms=200)
    assert raised.value.failure == "timeout"
    assert trial.pool.invoke(b"a", timeout_ms=200) == b"a"
    assert len(trial.made) == 1

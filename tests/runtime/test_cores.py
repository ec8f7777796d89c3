"""The number of workers by load: the decision, its measurements, and runtimes that follow it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.runtime.cores import WorkDone, WorkersByLoad, workers_for
from penstock.runtime.runtime import Runtime
from tests.runtime.record_operators import keyed, stateless


@given(
    now=st.integers(1, 8),
    most=st.integers(1, 8),
    busy=st.floats(0, 1),
    spare=st.floats(0, 8),
    rates=st.dictionaries(st.integers(1, 8), st.floats(1, 1e6)),
)
def test_one_worker_more_or_less_at_most(
    now: int, most: int, busy: float, spare: float, rates: dict[int, float]
) -> None:
    chosen = workers_for(min(now, most), most, WorkDone(busy, spare, rates))
    assert 1 <= chosen <= most
    assert abs(chosen - min(now, most)) <= 1


def test_an_idle_host_goes_back_to_one_worker() -> None:
    workers = 4
    for _ in range(3):
        workers = workers_for(workers, 4, WorkDone(busy=0.05, spare=3.0))
    assert workers == 1


class Host:
    """A host that is busy all the time. `rate` is its throughput with a number of workers."""

    def __init__(self, most: int, rate: Callable[[int], float], spare: float = 4.0) -> None:
        self.now, self._rate, self._spare = 0.0, rate, spare
        self.by_load = WorkersByLoad(most, lambda: self._spare, lambda: self.now)

    def work(self, seconds: float, pause: float = 0.0) -> list[int]:
        """The number of workers after each tenth of a second of work."""
        chosen = []
        for _ in range(round(seconds * 10)):
            self.now += 0.1 + pause
            self.by_load.note(round(self._rate(self.by_load.workers) * 0.1), 0.1)
            chosen.append(self.by_load.workers)
        return chosen


def test_a_busy_step_that_gains_gets_all_workers() -> None:
    assert Host(4, lambda workers: 1e5 * workers).work(2.0)[-1] == 4


def test_a_step_that_does_not_gain_stays_with_one_worker_but_is_tried_again() -> None:
    host = Host(4, lambda workers: 1e5 * (1.0 if workers == 1 else 0.9))
    chosen = host.work(50.0)
    assert chosen.count(1) > 0.95 * len(chosen)
    assert max(chosen) == 2
    assert 2 in host.work(20.0), "after a minute the second worker gets another chance"


def test_workers_that_bring_nothing_are_given_up() -> None:
    assert Host(4, lambda workers: 1e5 * min(workers, 2)).work(10.0)[-20:].count(2) >= 19


def test_a_machine_without_idle_cores_gets_no_more_workers() -> None:
    assert set(Host(4, lambda workers: 1e5 * workers, spare=0.2).work(2.0)) == {1}


def test_a_host_with_little_work_keeps_one_worker() -> None:
    assert set(Host(4, lambda workers: 1e5 * workers).work(5.0, pause=1.0)) == {1}


@pytest.mark.parametrize("stream", [False, True])
def test_a_runtime_follows_the_choice(stream: bool) -> None:
    by_load = WorkersByLoad(3, lambda: 4.0)
    operators = [
        keyed("same", lambda item, _: [item], key=lambda n: n, parts=4, make_state=list),
        stateless("again", lambda item: [item]),
    ]
    runtime = Runtime(operators, workers=3, by_load=by_load)
    outputs: list[object] = []
    if stream:
        runtime.open(outputs.append)
    used = []
    by_load.note = lambda records, seconds: None  # type: ignore[method-assign]
    for workers in (1, 3, 2, 1, 3):
        by_load.workers = workers
        for _ in range(2):
            if stream:
                for item in range(20):
                    runtime.submit(item)
                runtime.drain()
            else:
                outputs += runtime.run(range(20))
        used.append(len(runtime._crew.threads) + (not stream))
    assert outputs == list(range(20)) * 10
    assert used == [1, 3, 2, 1, 3]
    runtime.close()

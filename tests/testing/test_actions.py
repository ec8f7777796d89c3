"""Actions for trial points: a pace, couriers that do not combine rows, and hosts that start late."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import SettingError
from penstock.plan.epoch import EpochPlan
from penstock.testing import Delay, Fault, Pace, Uncombined
from tests.trials.cluster import SETTINGS, cluster
from tests.trials.trial import FLOWS

pytestmark = pytest.mark.timeout(60)

RATE = 100.0
ROWS = [[{"k": n % 7, "v": n} for n in range(300)], [{"k": n % 5, "v": n} for n in range(80)]]


class Clock:
    """A clock that advances when a thread waits on it. Only one thread may wait at a time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._waiting = threading.Lock()

    def wait(self, seconds: float) -> None:
        assert self._waiting.acquire(blocking=False), (
            "a host works on two channels at the same time"
        )
        threading.Event().wait(0.001)
        self.now += seconds
        self._waiting.release()


def work(host: str | None = "sum/0", **facts: Any) -> dict[str, Any]:
    return {"took_s": 0.0, **({} if host is None else {"host": host}), **facts}


def test_no_more_records_a_second_than_the_pace() -> None:
    clock = Clock()
    pace = Pace(RATE, wait=clock.wait)
    taken = 0
    for records, took_s in [(10, 0.0), (0, 0.0), (50, 0.25), (1, 0.0), (30, 9.0)]:
        clock.now += took_s
        assert pace(work(records=records, took_s=took_s)) == max(0.0, records / RATE - took_s)
        taken += records
        assert taken <= clock.now * RATE + 1e-9
    assert clock.now == pytest.approx(0.1 + 0.5 + 0.01 + 9.0), "no slower than that, either"


def test_a_host_works_on_one_channel_at_a_time() -> None:
    clock = Clock()
    pace = Pace(RATE, wait=clock.wait)
    channels = [threading.Thread(target=pace, args=(work(records=10),)) for _ in range(8)]
    for channel in channels:
        channel.start()
    for channel in channels:
        channel.join()
    assert clock.now == pytest.approx(8 * 10 / RATE)


def test_a_host_that_ends_does_not_wait_for_its_pace() -> None:
    ended = threading.Event()
    ended.set()
    assert Pace(1e-9)(work(records=1, until=ended)) == pytest.approx(1e9)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_pace_that_takes_nothing_is_refused(rate: float) -> None:
    with pytest.raises(SettingError, match="use more than 0"):
        Pace(rate)


def test_the_hosts_of_a_step_keep_its_pace_and_all_of_that_is_useful_time(tmp_path: Path) -> None:
    waited: dict[int, float] = {}

    def wait(seconds: float) -> None:
        waited[epoch] = waited.get(epoch, 0.0) + seconds

    faults = (
        Fault("courier.sender", Uncombined(), hits=()),
        Fault("host.work", Pace(RATE, wait=wait), where={"step": "sums"}, hits=()),
        Fault("host.work", Pace(1e-9, wait=wait), where={"step": "another"}, hits=()),
    )
    with cluster(FLOWS["sums"][0], str(tmp_path), settings=replace(SETTINGS, faults=faults)) as on:
        for epoch in range(3):
            hosts = on.run(ROWS).hosts
            assert sum(host.rows for host in hosts) == 380
            useful_s = sum(host.useful_ms for host in hosts) / 1000
            # On a busy machine, the work takes longer than its CPU time.
            assert 0.5 * 3.8 < waited[epoch] <= 3.8, "each epoch has its own"
            assert waited[epoch] <= useful_s < 1.5 * 3.8


def test_a_courier_that_combines_nothing_sends_each_row(tmp_path: Path) -> None:
    """This holds with two stages too, and only for the couriers that the fault selects."""
    first = Fault("courier.sender", Uncombined(), where={"partition": 0}, hits=())
    settings = replace(SETTINGS, faults=(first,))

    def two_stages(plan: EpochPlan) -> EpochPlan:
        return replace(plan, steps=tuple(replace(step, two_stage=True) for step in plan.steps))

    for helped in (lambda plan: plan, two_stages):
        store = str(tmp_path / helped.__name__)
        with cluster(FLOWS["sums"][0], store, settings=settings, helped=helped) as on:
            assert sum(host.rows for host in on.run(ROWS).hosts) == 300 + 5


def test_a_delay_is_called_off_with_its_host() -> None:
    waits: list[float] = []

    class Until(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return True

    Delay(1_500)({"host": "sum/2", "step": "sum", "until": Until()})
    assert waits == [1.5]


@pytest.mark.parametrize("action", [Pace(4_000), Delay(30), Uncombined()])
def test_actions_are_values_that_settings_ship(action: Any) -> None:
    """They are equal after shipping, so that a worker keeps their counts."""
    fault = Fault("courier.sender", action, where={"step": "sum"}, hits=range(3, 9))
    assert pickle.loads(pickle.dumps(fault)) == fault

"""The keeper of burst workers: starts, replaces and ends them, and no epoch waits for that."""

from __future__ import annotations

import threading

from penstock.offload.keeper import WorkerKeeper
from penstock.wire.report import Usage
from tests.driver.pretence import PretendedStarted


def done(keeper: WorkerKeeper) -> None:
    keeper._worker.submit(lambda: None).result()


def waiting() -> tuple[WorkerKeeper, PretendedStarted, threading.Event]:
    """A keeper whose burst workers start when the event is set."""
    may, made = threading.Event(), PretendedStarted()

    def bring_up() -> PretendedStarted:
        assert may.wait(10)
        return made

    keeper = WorkerKeeper(bring_up)
    keeper.start()
    return keeper, made, may


def test_burst_workers_start_in_the_background_and_are_ended() -> None:
    keeper, made, may = waiting()
    keeper.warm(3)
    assert (keeper.reach, keeper.state) == (None, "starting")
    may.set()
    done(keeper)
    assert (keeper.reach, keeper.state) == ("functions 0", "up")
    assert made.warmed[-1] == 3
    keeper.note(Usage(invocations=2, money=0.5))
    keeper.ask()
    done(keeper)
    assert keeper.used.invocations == 2
    keeper.stop()
    keeper.stop()
    assert (keeper.reach, keeper.state, made.stopped) == (None, "ended", 1)
    assert keeper.used.money == 0.5
    keeper.renew()
    keeper.warm(4)
    keeper.ask()


def test_burst_workers_that_start_during_the_stop_are_ended_too() -> None:
    keeper, made, may = waiting()
    ending = threading.Thread(target=keeper.stop)
    ending.start()
    may.set()
    ending.join(10)
    assert not ending.is_alive()
    assert made.stopped == 1
    assert keeper.reach is None


def test_usage_of_earlier_burst_workers_still_counts() -> None:
    made: list[PretendedStarted] = []

    def bring_up() -> PretendedStarted:
        made.append(PretendedStarted(len(made)))
        return made[-1]

    keeper = WorkerKeeper(bring_up)
    keeper.warm(2)
    keeper.start()
    done(keeper)
    keeper.note(Usage(invocations=1))
    keeper.renew()
    done(keeper)
    assert keeper.reach == "functions 1"
    assert made[1].warmed == [2]
    keeper.note(Usage(invocations=1))
    keeper.stop()
    assert keeper.used.invocations == 2


def test_burst_workers_that_do_not_start_are_reported() -> None:
    def bring_up() -> PretendedStarted:
        raise OSError("no more processes")

    keeper = WorkerKeeper(bring_up)
    keeper.start()
    done(keeper)
    assert (keeper.reach, keeper.trouble) == (None, "no more processes")
    keeper.stop()

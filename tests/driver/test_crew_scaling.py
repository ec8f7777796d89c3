"""Couriers that follow the load, from the driver's side: the couriers of each run, and what they read."""

from __future__ import annotations

from pathlib import Path

from penstock.control.crew_size import CrewLimits
from penstock.driver.crew_scaling import CrewScaling
from penstock.state.store.store import Store
from penstock.testing.thread_hosts import open_store
from tests.driver.pretended_live import CountedSource, PretendedFlow, pretended, until

SOURCE = CountedSource({f"p{n}": 100 * n for n in range(4)})
LIMITS = CrewLimits(at_most=3, calm_ms=300.0)


def store_in(folder: Path) -> Store:
    return open_store(str(folder))


def readers(flow: PretendedFlow) -> list[list[str]]:
    """Partitions of each courier of the newest run."""
    return [sorted(order.positions.get(0, {})) for order in flow.couriers.run.values()]


def test_a_courier_that_is_too_busy_gets_help_when_that_is_up(tmp_path: Path) -> None:
    with pretended(store_in(tmp_path), source=SOURCE, couriers=1, limits=LIMITS) as flow:
        flow.couriers.busy_ms = 40.0  # Epochs take 20 to 100 ms.
        flow.start()
        until(lambda: len(flow.couriers.names) > 1)
        runs = len(flow.couriers.orders)
        flow.pass_epochs(3)
        assert len(flow.couriers.orders) == runs, "rows do not wait for the new couriers"
        flow.couriers.up |= set(flow.couriers.names)
        until(lambda: len(flow.couriers.run) == len(flow.couriers.names))
        assert sorted(p for part in readers(flow) for p in part) == ["p0", "p1", "p2", "p3"]
        assert all(readers(flow))
        assert "instead of 1: courier 0 was busy for" in flow.journal[0].text
        flow.stop()


def test_couriers_that_are_not_needed_leave_between_two_runs(tmp_path: Path) -> None:
    with pretended(store_in(tmp_path), source=SOURCE, couriers=3, limits=LIMITS) as flow:
        flow.start().pass_epochs(1)
        until(lambda: len(flow.couriers.run) == 1)
        assert readers(flow) == [["p0", "p1", "p2", "p3"]]
        lasts = [checkpoint.last for checkpoint in flow.couriers.checkpoints()]
        assert sum(lasts) == 1, "runs end regularly: no epoch was undone"
        flow.pass_epochs(2)
        flow.stop()
        (entry,) = flow.journal
        assert (entry.facts["before"], entry.facts["now"]) == (3, 1)


def test_a_dry_run_only_tells(tmp_path: Path) -> None:
    with pretended(store_in(tmp_path), source=SOURCE, couriers=3, limits=LIMITS) as flow:
        scaling = flow.runner._scaling
        assert isinstance(scaling, CrewScaling)
        scaling._dry_run = True
        flow.start()
        until(lambda: flow.journal)
        flow.pass_epochs(2)
        assert len(flow.couriers.run) == 3
        assert flow.journal[0].text.startswith("dry run, would be: 1 courier")
        flow.stop()

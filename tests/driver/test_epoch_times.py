"""Where the time of epochs went."""

from __future__ import annotations

from penstock.driver.epoch_times import EPOCHS, epoch_times
from penstock.driver.progress import HostProgress, MigrationProgress
from tests.observe.made_up import epoch


def test_no_epochs_with_rows_have_no_times() -> None:
    assert epoch_times([]) is None
    assert epoch_times([epoch(1, 1.0, rows=0)]) is None


def test_a_single_epoch_has_no_interval() -> None:
    times = epoch_times([epoch(1, 1.0)])
    assert times is not None
    assert (times.interval_ms, times.between_ms) == (None, None)


def test_times_are_means_of_the_newest_epochs() -> None:
    old = [epoch(n, 0.1 * n, mean_ms=9_000.0) for n in range(5)]
    new = [
        epoch(n, 10.0 + n, mean_ms=650.0, read_ms=50.0, migration=MigrationProgress(wait_ms=4.0))
        for n in range(EPOCHS)
    ]
    times = epoch_times([*old, *new])
    assert times is not None
    assert times.epochs == EPOCHS
    assert (times.interval_ms, times.read_ms, times.answer_ms) == (1_000.0, 50.0, 100.0)
    assert (times.latency_ms, times.waited_ms, times.fetch_ms) == (650.0, 500.0, 4.0)
    assert times.between_ms == 1_000.0 - 150.0 - times.seal_ms


def test_the_slowest_host_of_each_step_is_named() -> None:
    hosts = tuple(
        HostProgress(name, 1, 1, rows, useful_ms)
        for name, rows, useful_ms in (("a/0", 10, 30.0), ("a/1", 90, 90.0), ("b-c/0", 5, 7.0))
    )
    times = epoch_times([epoch(n, n, hosts=hosts) for n in (1, 2)])
    assert times is not None
    a, b = times.works
    assert (a.step, a.host, a.longest_ms, a.records, a.mean_ms) == ("a", "a/1", 90.0, 90.0, 60.0)
    assert (b.step, b.host, b.mean_ms) == ("b-c", "b-c/0", 7.0)

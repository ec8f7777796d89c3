"""The log line that says that all is well again: when it is written, and when not."""

from __future__ import annotations

import logging

import pytest

from penstock.driver.recovery import Recovery

HOST, OTHER = "host sum/1", "host sum/0"


class _Clock:
    now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def recovery(clock: _Clock) -> Recovery:
    return Recovery(clock)


def test_a_flow_without_faults_says_nothing(
    recovery: Recovery, caplog: pytest.LogCaptureFixture
) -> None:
    for epoch in range(3):
        recovery.begin(epoch)
        recovery.back(HOST)  # It registers for the first time.
        assert not recovery.durable(epoch)
    assert not caplog.records


def test_the_line_waits_for_hosts_and_for_the_epoch(
    recovery: Recovery, clock: _Clock, caplog: pytest.LogCaptureFixture
) -> None:
    recovery.begin(3)
    recovery.lost(HOST)
    recovery.run_again(3)
    recovery.lost(OTHER)
    recovery.run_again(3)
    assert not recovery.back(HOST)
    assert not recovery.durable(3), "a host is missing"
    recovery.begin(4)
    clock.now_ms = 2_500.0
    line = recovery.back(OTHER)
    assert line == (
        "All is well again after 2.5 s: host sum/1, host sum/0 are back, and epoch 3 is durable "
        "after 3 runs."
    )
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("penstock.epochs", logging.WARNING)
    assert vars(record)["took_ms"] == 2_500
    assert not recovery.durable(4), "it is said once"


def test_a_host_that_is_back_before_its_epoch_failed_is_not_yet_well(recovery: Recovery) -> None:
    recovery.begin(3)
    recovery.lost(HOST)
    assert not recovery.back(HOST), "its epoch will be run again"
    recovery.run_again(3)
    assert recovery.durable(3)


def test_an_epoch_that_was_done_when_a_host_was_lost_says_nothing(recovery: Recovery) -> None:
    recovery.begin(3)
    recovery.lost(HOST)
    assert not recovery.durable(3), "the next one shows whether others have its slots"
    recovery.begin(4)
    assert not recovery.back(HOST)
    assert recovery.durable(4).endswith(": host sum/1 is back.")


def test_between_epochs_it_is_enough_that_the_host_is_back(recovery: Recovery) -> None:
    recovery.begin(3)
    recovery.durable(3)
    recovery.lost(HOST)
    assert recovery.back(HOST).endswith(": host sum/1 is back.")


def test_nobody_waits_for_a_host_that_is_not_needed_any_more(recovery: Recovery) -> None:
    recovery.begin(3)
    recovery.lost(HOST)
    recovery.run_again(3)
    assert not recovery.durable(3)
    assert recovery.dismissed(HOST).endswith(": epoch 3 is durable after 2 runs.")
    assert not recovery.dismissed(HOST)

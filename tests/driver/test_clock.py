"""The time of epochs never goes back, whatever the machine's clock does."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.driver.clock import PACE, EpochClock

HOUR = 3_600_000.0
DAY = 24 * HOUR


class Clocks:
    """A wall clock that can be set, and a monotonic one."""

    def __init__(self, wall: float = 1e12) -> None:
        self.wall, self.steady = wall, 0.0
        self.made = EpochClock(lambda: self.wall, lambda: self.steady)

    def pass_ms(self, ms: float, step: float = 0.0) -> int:
        self.wall += ms + step
        self.steady += ms
        return self.made.now_ms()


def test_it_is_the_time_of_day() -> None:
    clocks = Clocks()
    assert [clocks.pass_ms(ms) for ms in (0, 1, 1000)] == [10**12, 10**12 + 1, 10**12 + 1001]


@given(
    st.lists(
        st.tuples(st.floats(0, HOUR), st.sampled_from([0.0, 0.0, -HOUR, HOUR, -DAY, DAY, -3.0])),
        max_size=30,
    )
)
@settings(max_examples=100, deadline=None)
def test_it_never_goes_back_nor_stands_still(steps: list[tuple[float, float]]) -> None:
    clocks = Clocks()
    before = clocks.pass_ms(0)
    for ms, step in steps:
        now = clocks.pass_ms(ms, step)
        assert now >= int(clocks.wall)
        assert now - before >= PACE * ms - 1
        before = now


def test_a_clock_that_was_a_day_ahead_is_caught_up_with(caplog: pytest.LogCaptureFixture) -> None:
    """Timers continue meanwhile, a bit slower; one log line says so."""
    clocks = Clocks()
    clocks.pass_ms(1000, DAY)
    clocks.pass_ms(1000, -DAY)
    for _ in range(9 * 24):
        clocks.pass_ms(HOUR)
        assert clocks.made.now_ms() > clocks.wall + HOUR / 2
    for _ in range(2 * 24):
        clocks.pass_ms(HOUR)
    assert clocks.made.now_ms() == int(clocks.wall)
    records = [r for r in caplog.records if r.name == "penstock.epochs"]
    assert [r.levelno for r in records] == [logging.WARNING]
    assert "86400 s behind" in records[0].getMessage()


def test_another_driver_goes_on_from_the_manifest() -> None:
    clocks = Clocks()
    clocks.made.not_before(10**12 + 5000)
    clocks.made.not_before(None)
    assert clocks.pass_ms(0) == 10**12 + 5000
    assert clocks.pass_ms(1000) == 10**12 + 5900
    assert clocks.pass_ms(100_000) == 10**12 + 101_000

"""The load of a host, and how background transfers give way to it."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.host.load import Load, Rests, processors


class Machine:
    """A clock, and the processor time that a machine of one core has used."""

    def __init__(self) -> None:
        self.now = self.used = 0.0

    def load(self) -> Load:
        return Load(lambda: self.now, lambda: (self.used, self.now))

    def run(self, load: Load, seconds: float, rows: float = 0.0, cores: float = 0.0) -> None:
        """Let time pass in steps, with rows for a part of each, and with the processors partly in use."""
        for _ in range(round(seconds / 0.1)):
            with load.working():
                self.now += 0.1 * rows
            self.now += 0.1 * (1 - rows)
            self.used += 0.1 * cores


@pytest.mark.parametrize(
    ("rows", "cores", "ratio"),
    [(0.0, 0.0, 0.0), (0.5, 0.0, 2.0), (0.0, 0.5, 2.0), (0.5, 0.2, 2.0), (1.0, 0.0, 19.0)],
)
def test_a_transfer_rests_by_load(rows: float, cores: float, ratio: float) -> None:
    machine = Machine()
    load = machine.load()
    machine.run(load, 10, rows, cores)
    assert load.rest_s(0.01) == pytest.approx(0.01 * ratio, rel=0.05)


def test_load_is_forgotten_within_seconds() -> None:
    machine = Machine()
    load = machine.load()
    machine.run(load, 10, rows=1.0)
    busy = load.rest_s(0.01)
    machine.run(load, 4)
    assert load.rest_s(0.01) < busy / 100


def test_overlapping_work_counts_once() -> None:
    machine = Machine()
    load = machine.load()
    with ExitStack() as channels:
        for _ in range(3):
            channels.enter_context(load.working())
            machine.now += 1
        assert load.now == pytest.approx(1, abs=0.1)
    machine.now += 3
    assert load.now == pytest.approx(0, abs=0.1)


@given(st.lists(st.tuples(st.floats(0.1, 3), st.floats(0, 1), st.floats(0, 1)), max_size=6))
def test_a_rest_is_bounded(times: list[tuple[float, float, float]]) -> None:
    machine = Machine()
    load = machine.load()
    for seconds, rows, cores in times:
        machine.run(load, seconds, rows, cores)
        assert 0 <= load.now <= 1
        assert 0 <= load.rest_s(0.01) <= 0.19 + 1e-9
        assert load.rest_s(10) <= 1


def test_the_machine_tells_its_processor_time() -> None:
    used, had = processors()
    assert 0 < used < had


def test_a_chore_rests_by_load_but_comes_to_an_end() -> None:
    machine, rests, worked = Machine(), list[float](), [0.0]
    load = machine.load()
    chore = Rests(load, rests.append, lambda: worked[0])

    def work(seconds: float) -> None:
        worked[0] += seconds
        chore()

    machine.run(load, 10)
    work(0.02)
    assert rests == [], "the host was idle"
    machine.run(load, 10, rows=0.5)
    work(0.005)
    assert rests == [], "the step was too short"
    work(0.015)
    assert rests == [pytest.approx(0.04, rel=0.05)]
    machine.run(load, 10, rows=1.0)
    for _ in range(1_000):
        work(0.1)
    assert max(rests) <= 0.2
    assert sum(rests) == pytest.approx(60), "it no longer rests"

"""The rate source: rows by number, on time, in partitions, and equal when read again."""

from __future__ import annotations

import time

import numpy as np
import pytest

from penstock.errors import SettingError
from penstock.live.sources.rate import Even, RateSource, rate
from penstock.live.sources.source import LiveReader
from penstock.sim.shapes import shape


class Clock:
    """A clock that the test sets."""

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s

    def __call__(self) -> float:
        return self.at_s


def drained(reader: LiveReader, most: int = 7) -> dict[str, list[int]]:
    by_partition: dict[str, list[int]] = {}
    while polled := reader.poll(0, most):
        for rows in polled:
            by_partition.setdefault(rows.partition, []).extend(
                rows.batch.column("value").to_pylist()
            )
    return by_partition


def source_at(clock: Clock, **args: object) -> RateSource:
    source = rate(1000, **args)  # type: ignore[arg-type]
    return RateSource(source.arrivals, source.content, source.count, source.rows, clock)


def test_rows_arrive_on_time() -> None:
    clock = Clock(100.0)
    source = source_at(clock)
    reader = source.reader(source.first(["0"]))
    assert reader.poll(0, 100) == []
    clock.at_s = 100.010
    (polled,) = reader.poll(0, 100)
    assert polled.batch.column("value").to_pylist() == list(range(10))
    assert polled.batch.column("arrival").cast("int64").to_pylist() == [
        100_000_000 + 1000 * n for n in range(1, 11)
    ]
    assert polled.batch.schema == source.schema
    assert not reader.ended


@pytest.mark.parametrize("rows", [0, 1, 100, 101])
def test_all_rows_are_in_one_partition_each_and_then_it_ends(rows: int) -> None:
    clock = Clock(0.0)
    source = source_at(clock, rows=rows, partitions=3)
    reader = source.reader(source.first(source.partitions()))
    clock.at_s = 60.0
    by_partition = drained(reader)
    assert all(n % 3 == int(name) for name, numbers in by_partition.items() for n in numbers)
    assert all(numbers == sorted(numbers) for numbers in by_partition.values())
    assert sorted(n for numbers in by_partition.values() for n in numbers) == list(range(rows))
    assert reader.ended


def test_a_reader_that_starts_at_a_position_gives_the_same_rows_as_before() -> None:
    clock = Clock(0.0)
    source = source_at(clock, rows=50)
    first = source.reader(source.first(["0"]))
    clock.at_s = 10.0
    (polled,) = first.poll(0, 20)
    (rest,) = first.poll(0, 100)
    (again,) = source.reader({"0": polled.position}).poll(0, 100)
    assert again.batch.equals(rest.batch)
    assert again.batch.num_rows == 30


def test_a_poll_waits_for_the_next_row_up_to_its_timeout() -> None:
    source = rate(50)
    reader = source.reader(source.first(["0"]))
    began = time.monotonic()
    assert reader.poll(5_000, 10)[0].batch.num_rows == 1
    assert time.monotonic() - began < 2
    assert rate(0.001).reader({"0": {"row": 0, "start_ms": 4e12}}).poll(1, 10) == []


def test_counts_of_an_even_rate_match_its_arrival_times() -> None:
    for per_second in (1.0, 3.0, 999.0, 1000.0, 1e6 / 7, 2.5e6):
        even = Even(per_second)
        for count in (1, 2, 3, 1000, 12_345, 10_000_000):
            due_ms = int(even.arrival_us(np.array([count - 1]))[0]) / 1000
            assert even.cumulative(due_ms) >= count
            assert even.cumulative(due_ms - 0.001) < count or per_second > 1e6


def test_a_shape_can_be_the_rate() -> None:
    source = rate(shape("burst(100, 5, 1s, 1s)"))
    reader = source.reader({"0": {"row": 0, "start_ms": int(time.time() * 1000) - 3000}})
    (polled,) = reader.poll(0, 10_000)
    assert 690 <= polled.batch.num_rows <= 800


def test_two_million_rows_a_second() -> None:
    source = rate(1e9)
    reader = source.reader({"0": {"row": 0, "start_ms": 0}})
    reader.poll(0, 10_000)
    began, rows = time.process_time(), 0
    while rows < 1_000_000:
        rows += sum(polled.batch.num_rows for polled in reader.poll(0, 10_000))
    assert time.process_time() - began < 0.5


def test_invalid_rates_are_refused() -> None:
    for wrong in ({"rows_per_second": 0}, {"rows_per_second": 1, "partitions": 0}):
        with pytest.raises(SettingError):
            rate(**wrong)  # type: ignore[arg-type]

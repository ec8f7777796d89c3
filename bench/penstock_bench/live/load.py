"""Loads of live trials: generated rows that arrive in a given shape, after a lead-in during which the flow
starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.control.examine.vitals import Floats
from penstock.live.sources.rate import ArrivalTimes, Content, Even, RateReader, RateSource
from penstock.live.sources.source import Polled
from penstock.model import SLA
from penstock.sim.pieces import Numbers
from penstock_bench.live.latency import Truth, truth_of
from penstock_bench.live.receipts import ReadCounts, Received, done_us


class Records(NamedTuple):
    """The records that rows become for the measured step: one or more per row."""

    row: Numbers
    """Index of each record's row."""
    key: Numbers


@dataclass(frozen=True)
class Load:
    """The rows of a trial, and how to read from the output which of them are done."""

    arrivals: ArrivalTimes
    content: Content
    records: Callable[[Numbers, Numbers], Records]
    """Function from row numbers and arrival times (microseconds) to records."""
    slots_of: Callable[[Numbers], Numbers]
    """Function from keys to slots."""
    read_counts: ReadCounts
    """Reads keys and counts from the flow's output."""


@dataclass(frozen=True)
class LedArrivals:
    """Rows at a steady rate for some seconds, then the rows of a load."""

    arrivals: ArrivalTimes
    lead: Even
    lead_s: float

    @property
    def first(self) -> int:
        """Number of the load's first row."""
        return int(self.lead.cumulative(self.lead_s * 1000))

    def rate_at(self, t_s: npt.ArrayLike) -> npt.NDArray[np.float64]:
        passed = np.asarray(t_s, np.float64) - self.lead_s
        after = self.arrivals.rate_at(np.maximum(passed, 0.0))
        return np.where(passed < 0, self.lead.rate, after)

    def cumulative(self, t_ms: npt.ArrayLike) -> Numbers:
        passed = np.asarray(t_ms, np.float64) - self.lead_s * 1000
        after = self.first + self.arrivals.cumulative(np.maximum(passed, 0.0))
        counted: Numbers = np.where(passed < 0, self.lead.cumulative(t_ms), after)
        return counted

    def arrival_us(self, number: Numbers) -> Numbers:
        after = self.arrivals.arrival_us(np.maximum(number - self.first, 0))
        lead_us = round(self.lead_s * 1e6)
        times: Numbers = np.where(
            number < self.first, self.lead.arrival_us(number), lead_us + after
        )
        return times


@dataclass(frozen=True)
class LedContent:
    """The content of a load's rows. Its time begins at the end of the lead-in."""

    content: Content
    lead_s: float

    @property
    def columns(self) -> str:
        return self.content.columns

    def rows(self, number: Numbers, t_us: Numbers) -> list[pa.Array]:
        return self.content.rows(number, np.maximum(t_us - round(self.lead_s * 1e6), 0))


@dataclass(frozen=True)
class LedSource(RateSource):
    """The source of a load. It starts at the time in its gate file: milliseconds since 1970."""

    gate: Path = Path()

    def first(self, partitions: Sequence[str]) -> dict[str, Any]:
        return {partition: {"row": 0, "start_ms": None} for partition in partitions}

    def reader(self, positions: Mapping[str, Any]) -> RateReader:
        return LedReader(self, positions)

    def begin(self, lead_in_ms: int) -> None:
        """Set the time at which the lead-in begins."""
        new = self.gate.with_suffix(".new")
        new.write_text(str(lead_in_ms))
        new.rename(self.gate)

    @property
    def begun_ms(self) -> int:
        """Time at which the lead-in began, in milliseconds since 1970."""
        return int(self.gate.read_text())

    @property
    def load_ms(self) -> int:
        """Time at which the load itself began, after the lead-in, in milliseconds since 1970."""
        return self.begun_ms + round(1000 * self.led.lead_s)

    @property
    def led(self) -> LedArrivals:
        assert isinstance(self.arrivals, LedArrivals)
        return self.arrivals


class LedReader(RateReader):
    """A reader that returns no rows before the gate is open."""

    def __init__(self, source: LedSource, positions: Mapping[str, Any]) -> None:
        super().__init__(source, positions)
        self._gate = source.gate

    def poll(self, wait_ms: float, most_rows: int) -> list[Polled]:
        closed = [at for at in self._at.values() if at["start_ms"] is None]
        if closed and not self._gate.exists():
            time.sleep(wait_ms / 1000)
            return []
        for at in closed:
            at["start_ms"] = int(self._gate.read_text())
        return super().poll(wait_ms, most_rows)

    def behind(self) -> int:
        return 0 if any(at["start_ms"] is None for at in self._at.values()) else super().behind()


def led(load: Load, lead_s: float, gate: Path, partitions: int = 1) -> LedSource:
    """The source of a load, with a lead-in at the load's first rate."""
    lead = Even(max(10.0, float(load.arrivals.rate_at(0.0))))
    arrivals = LedArrivals(load.arrivals, lead, lead_s)
    return LedSource(arrivals, LedContent(load.content, lead_s), partitions, gate=gate)


def followed(
    load: Load, source: LedSource, received: Received, slots: int, seconds: float
) -> Truth:
    """Exact latencies of the records of a load's first seconds, computed from the output."""
    arrivals = source.led
    lead_ms = arrivals.lead_s * 1000
    count = int(arrivals.cumulative(lead_ms + seconds * 1000 - 1e-3))
    number = np.arange(count, dtype=np.int64)
    t_us = arrivals.arrival_us(number) - round(lead_ms * 1000)
    row, key = load.records(number, np.maximum(t_us, 0))
    done = done_us(key, received) / 1000 - source.load_ms
    judged = row >= arrivals.first
    return truth_of(t_us[row[judged]], load.slots_of(key[judged]), done[judged], slots, seconds)


def as_fast_as(t_us: Numbers, rate: float) -> Floats:
    """Times in milliseconds at which records are done if one server processes them in order at this rate.

    >>> as_fast_as(np.array([0, 0, 5_000_000]), rate=2.0).tolist()
    [500.0, 1000.0, 5500.0]
    """
    each_ms, order = 1000 / rate, np.arange(len(t_us))
    waited: Floats = np.maximum.accumulate(t_us / 1000 - order * each_ms)
    return waited + (order + 1) * each_ms


def possible(truth: Truth, rate: float, sla: SLA, warm_up_s: float, seconds: float) -> float:
    """Highest success that the records of a run allow: that of a single queue in the order of arrival, from
    which all allowed hosts together take `rate` records per second from the start, at no further cost."""
    t_us = np.round(truth.arrival_s * 1e6).astype(np.int64)
    done = as_fast_as(t_us, rate)
    ideal = truth_of(t_us, truth.slot, done, truth.arrived.shape[1], seconds)
    return float(ideal.success(sla, warm_up_s).mean())

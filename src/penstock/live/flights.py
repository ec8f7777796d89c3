"""Chunks in flight to the hosts of a keyed step: which hosts have not applied them, and what follows then."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.live.backlog import WaitingRecords
from penstock.live.meter import StepMeter
from penstock.live.notes import EpochNotes
from penstock.live.pacing import ByteWindow, Pacer, PeakRate, Throughput
from penstock.offload.courier.redirect import Gathered
from penstock.state.arrays import Array


@dataclass
class Flight:
    """A chunk that is not complete: hosts have not applied all of it."""

    parts: int
    """Parts that hosts have not applied yet. A record that had to wait counts as a part of its own."""
    work_s: float
    """Seconds of work that the chunk took in this courier."""
    bytes: int
    arrived_us: list[Array]
    came_us: float
    """Mean arrival time of its rows, in microseconds since 1970."""
    notes: EpochNotes
    first: int
    """Serial number of its first record, if the flow is ordered."""
    redirected: bool = False
    """Whether results of rows that were redirected to burst workers are still missing."""


@dataclass
class _Partials:
    """Partial states of redirected rows, in flight to hosts."""

    parts: int
    of: Gathered


class Flights:
    """All chunks in flight from one courier to one step. Used by one thread.

    A chunk is complete when hosts have applied all of its rows, and the partial states of those that were
    redirected. `behind_s` returns the seconds that rows take from here to the sink. If the flow is ordered, a
    chunk is released when all chunks before it are complete. Then `in_order` is called with the serial number
    of the first record that is not complete, or None if all are.
    """

    def __init__(
        self,
        pacer: Pacer,
        window: ByteWindow,
        meter: StepMeter | None,
        clock: Callable[[], float],
        now_us: Callable[[], float],
        behind_s: Callable[[], float],
        in_order: Callable[[int | None], None] | None = None,
    ) -> None:
        self._pacer, self._window, self._meter = pacer, window, meter
        self._clock, self._now_us, self._behind_s = clock, now_us, behind_s
        self._in_order = in_order
        self._flying: dict[int, Flight | _Partials] = {}
        self._rests: dict[int, list[WaitingRecords]] = {}
        """Chunk number -> records sent in it that had waited, and that belong to earlier chunks."""
        self._unreleased: dict[int, Flight] = {}
        """Complete chunks that wait for earlier ones."""
        self._busy_s = 0.0
        """Seconds of host work since the last chunk was applied."""
        self.hosts, self.peak = Throughput(), PeakRate()

    def worked(self, host: str, busy_us: int) -> None:
        """Add the microseconds that a host has worked since its last report."""
        self._busy_s += busy_us / 1e6
        if self._meter is not None and busy_us:
            self._meter.worked(host, busy_us)

    def sent(self, number: int, flight: Flight) -> None:
        """Record that a chunk was sent."""
        self._flying[number] = flight
        if not flight.parts:
            self._through_hosts(number, flight)

    def brought(self, number: int, of: Gathered, parts: int) -> None:
        """Record that partial states of redirected rows were sent, in this number of parts."""
        self._flying[number] = partials = _Partials(parts, of)
        if not parts:
            self._settled(number, partials)

    def came_us(self, of: Gathered) -> float:
        """Mean arrival time of redirected rows, in microseconds: that of their earliest chunk."""
        flights = (self._flying[number] for number in of.chunks)
        return min(flight.came_us for flight in flights if isinstance(flight, Flight))

    def followed(self, number: int, records: list[WaitingRecords]) -> None:
        """Record that waiting records were sent as a chunk."""
        self._rests[number] = records

    def applied(self, numbers: Iterable[int], host: str) -> None:
        """Record that a host has applied its parts of these chunks."""
        for number in numbers:
            for some in self._rests.pop(number, ()):
                self._count_down(some.of, some.batch.num_rows, host, some.slots)
            if number in self._flying:
                self._count_down(number, 1, host)

    def _count_down(self, number: int, parts: int, host: str, slots: Array | None = None) -> None:
        """Subtract what a host has applied of a chunk: its part, or records that had waited."""
        if self._meter is not None:
            self._meter.applied(number, host, self._now_us(), slots)
        flight = self._flying[number]
        flight.parts -= parts
        if flight.parts:
            return
        if isinstance(flight, Flight):
            self._through_hosts(number, flight)
        else:
            self._settled(number, flight)

    def _through_hosts(self, number: int, flight: Flight) -> None:
        self._pacer.done(number, self._clock(), flight.work_s + self._busy_s)
        self._busy_s = 0.0
        if not flight.redirected:
            self._arrive(number, flight)

    def _settled(self, number: int, partials: _Partials) -> None:
        """Handle that all hosts have applied the partial states of one errand."""
        del self._flying[number]
        of = partials.of
        of.errands -= 1
        if of.errands:
            return
        flights = [(chunk, self._flying[chunk]) for chunk in of.chunks]
        came = [flight.came_us for _, flight in flights if isinstance(flight, Flight)]
        if self._meter is not None:
            self._meter.settled(of.counts, sum(came) / len(came), self._now_us())
        for chunk, flight in flights:
            assert isinstance(flight, Flight)
            flight.redirected = False
            if not flight.parts:
                self._arrive(chunk, flight)

    def _arrive(self, number: int, flight: Flight) -> None:
        """Release a complete chunk, if the order allows it."""
        del self._flying[number]
        if self._in_order is None:
            self._release(flight)
            return
        self._unreleased[number] = flight
        first = next(iter(self._flying), None)
        for released in [n for n in self._unreleased if first is None or n < first]:
            self._release(self._unreleased.pop(released))
        waits = None if first is None else self._flying[first]
        self._in_order(waits.first if isinstance(waits, Flight) else None)

    def _release(self, flight: Flight) -> None:
        """Free the chunk's bytes and note its latency: its output moves on."""
        self._window.add(-flight.bytes)
        flight.notes.left(flight.arrived_us, self._now_us() + 1e6 * self._behind_s())

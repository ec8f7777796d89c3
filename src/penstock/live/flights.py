"""Chunks on their way to the hosts of a keyed step: who has not applied them, what follows when all have."""

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
    """A chunk that is not through."""

    parts: int
    """Parts that hosts have not applied, and each record that had to wait."""
    work_s: float
    """What it was to this courier."""
    bytes: int
    arrived_us: list[Array]
    came_us: float
    """When its rows came, on average."""
    notes: EpochNotes
    first: int
    """The serial number of its first record, where the flow is ordered."""
    redirected: bool = False
    """Whether hosts have not applied what becomes of rows that were redirected."""


@dataclass
class _Partials:
    """What was made of redirected rows, on its way to hosts."""

    parts: int
    of: Gathered


class Flights:
    """All chunks of one courier to one step that are under way. Used by one thread.

    A chunk is through when hosts have applied all of its rows, and what was made of those that were
    redirected. `behind_s` tells how long rows take from here to the sink. Where the flow is ordered, a chunk
    goes on when those before it are through, and `in_order` is called with the serial number of the first
    record that is not; None: all are.
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
        """Chunks of records that had to wait, and belong to earlier ones."""
        self._unreleased: dict[int, Flight] = {}
        """Chunks that are through, while others before them are not."""
        self._busy_s = 0.0
        """Work of hosts since a chunk was applied."""
        self.hosts, self.peak = Throughput(), PeakRate()

    def worked(self, host: str, busy_us: int) -> None:
        """A host has worked for this time since it last said so."""
        self._busy_s += busy_us / 1e6
        if self._meter is not None and busy_us:
            self._meter.worked(host, busy_us)

    def sent(self, number: int, flight: Flight) -> None:
        """A chunk was sent."""
        self._flying[number] = flight
        if not flight.parts:
            self._through_hosts(number, flight)

    def brought(self, number: int, of: Gathered, parts: int) -> None:
        """What was made of redirected rows was sent, in so many parts."""
        self._flying[number] = partials = _Partials(parts, of)
        if not parts:
            self._settled(number, partials)

    def came_us(self, of: Gathered) -> float:
        """When rows that were redirected came, on average of the first chunk."""
        flights = (self._flying[number] for number in of.chunks)
        return min(flight.came_us for flight in flights if isinstance(flight, Flight))

    def followed(self, number: int, records: list[WaitingRecords]) -> None:
        """Records that had to wait were sent, as a chunk."""
        self._rests[number] = records

    def applied(self, numbers: Iterable[int], host: str) -> None:
        """A host has applied its parts of these chunks."""
        for number in numbers:
            for some in self._rests.pop(number, ()):
                self._count_down(some.of, some.batch.num_rows, host, some.slots)
            if number in self._flying:
                self._count_down(number, 1, host)

    def _count_down(self, number: int, parts: int, host: str, slots: Array | None = None) -> None:
        """A host has applied its part of a chunk, or records of it that had waited."""
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
        """All hosts have applied what was made of the rows of an errand."""
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
        """All of a chunk is through."""
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
        """What a chunk has caused goes on."""
        self._window.add(-flight.bytes)
        flight.notes.left(flight.arrived_us, self._now_us() + 1e6 * self._behind_s())

"""The examiner, which turns counts from the data plane into `Vitals`.

Latencies are estimated from counts alone, as in StreamSwitch. Each slot is processed in order of arrival, so
the r-th record of a slot to complete is the r-th that arrived. Time is divided into time slots of
`delta_ms`; time slot m ends at m * delta_ms. The error is at most one time slot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from penstock.control.examine.fifo import Fifo
from penstock.control.examine.history import ArrivalRates, Completions, time_slot
from penstock.control.examine.hosts import HostNumbers, ServiceRates
from penstock.control.examine.samples import Samples
from penstock.control.examine.vitals import Floats, Ints, Vitals, Work
from penstock.errors import ProtocolError
from penstock.model import HostId, StepId
from penstock.plan.slots import slots_to_text

_LONGEST_MS = 600_000.0
"""Maximum age of records in milliseconds. Older ones count as this old."""
_PEAK_BIN_MS = 1_000.0
"""Resolution of the time of a peak, in milliseconds."""
_FIRST_HOSTS = 16
_NEWEST = 3
"""Number of newest time slots in which to look for the start of a burst."""
_NO_SLOTS: Ints = np.arange(0)


class Examiner:
    """Keeps the counters of one step over time, and computes its vitals. Used by one thread.

    An engine without epochs calls `sample` at the end of each time slot. An engine with epochs calls
    `arriving` when it knows the rows of an epoch, and `epoch` when that epoch is in the sink. One examiner
    is used in only one of these ways.

    >>> examiner = Examiner(StepId("sum"), slots=2, window_ms=1000)
    >>> a = HostId("sum/0")
    >>> for m, arrived, completed in ((1, [30, 10], [0, 0]), (2, [60, 20], [30, 10])):
    ...     examiner.sample(m, arrived, completed, [0, 0], [a], {a: Work(sum(completed), 40.0)})
    >>> vitals = examiner.vitals(200, [a], [0, 0])
    >>> vitals.rate.tolist(), vitals.latency_ms.tolist(), vitals.backlog.tolist()
    ([300.0, 100.0], [100.0], [30.0, 10.0])
    >>> vitals.service_rate.tolist(), vitals.valid
    ([1000.0], True)
    """

    def __init__(
        self,
        step: StepId,
        slots: int,
        window_ms: float,
        delta_ms: float = 100.0,
        decay: float = 1 / 8,
        memory_ms: float = 30_000.0,
        measured: bool = False,
    ) -> None:
        """Create the examiner of a step.

        With `measured`, measured latencies are used, and estimates only where they are missing. `decay` is
        the weight of a new service rate, `memory_ms` the time that peaks are remembered.
        """
        self._measured = measured
        self.step, self.slots, self.delta_ms = step, slots, delta_ms
        self._window_ms, window = window_ms, window_ms / delta_ms
        longest = math.ceil(_LONGEST_MS / delta_ms)
        self._memory = math.ceil(memory_ms / delta_ms), max(1, round(_PEAK_BIN_MS / delta_ms))
        self._samples = Samples(step, slots, longest)
        self._fifo = Fifo(slots, longest)
        self._arrivals = self._new_arrivals()
        self._completions = Completions(slots, _FIRST_HOSTS, window)
        self._decay = decay
        self._service = ServiceRates(decay)
        self._numbers = HostNumbers()
        self._missing: Ints | None = None
        """Slots with a missing count; None before the first counts."""
        self._horizon = self._done = -math.inf
        self.unread: Floats = np.zeros(slots)
        """Records in the sources that are not read yet, by slot, as far as it is known."""

    def resize(self, slots: int) -> None:
        """Change the number of slots, because some were split or are whole again.

        Rates are measured anew, since those of the slots concerned have changed at once.
        """
        self.slots, self.unread = slots, np.zeros(slots)
        for part in (self._samples, self._fifo, self._completions):
            part.resize(slots)
        self._arrivals = self._new_arrivals()
        if self._missing is not None:
            self._missing = _NO_SLOTS

    def _new_arrivals(self) -> ArrivalRates:
        return ArrivalRates(self.slots, self._window_ms / self.delta_ms, *self._memory)

    @property
    def window_ms(self) -> float:
        """The SLA's window in milliseconds. It may be set at any time; a longer one fills up over time."""
        return self._window_ms

    @window_ms.setter
    def window_ms(self, window_ms: float) -> None:
        self._window_ms = window_ms
        for history in (self._arrivals, self._completions):
            history.set_window(window_ms / self.delta_ms)

    def sample(
        self,
        m: int,
        arrived: npt.ArrayLike,
        completed: npt.ArrayLike,
        owner: npt.ArrayLike,
        hosts: Sequence[HostId],
        work: Mapping[HostId, Work],
        measured_ms: npt.ArrayLike | None = None,
    ) -> None:
        """Add the counts at the end of time slot `m`, which is later than the last one.

        `arrived` and `completed` are counts per slot since the beginning of the first sampled time slot;
        negative or nan where a count is missing. `measured_ms` is the sum of the latencies of records
        completed in this time slot, per slot. `owner` is the index into `hosts` of each slot's owner in this
        time slot. `work` is the work of each host in it. Vitals are not valid while an owner's is missing.
        """
        owners = self._owners(owner)
        increases = self._samples.add(
            m,
            self._counts(arrived),
            self._counts(completed),
            self._numbers_of(hosts)[owners],
            None if measured_ms is None else self._counts(measured_ms),
        )
        for increase in increases:
            arrivals = increase.arrived[np.newaxis]
            self._arrivals.add(increase.m, arrivals, float(increase.m))
            self._fifo.arrive(increase.m, arrivals, increase.m)
            latency = self._fifo.complete(increase.m, increase.completed)
            if self._measured and increase.measured_ms is not None:
                latency = increase.measured_ms / self.delta_ms
            self._completions.add(
                increase.m, increase.owner, increase.completed, latency, increase.measured_ms
            )
        self._service.note(hosts, owners, work)
        self._missing = self._samples.missing

    def arriving(self, horizon_ms: float, arrivals: npt.ArrayLike, first_m: int) -> None:
        """Add the records that an epoch has read, before they are processed.

        `arrivals[j, slot]` records arrived in time slot `first_m + j`. They may be older than those of
        earlier epochs. `horizon_ms` is the time until which all arrivals are known.
        """
        counts = self._whole(self._counts(arrivals, axes=2))
        self._horizon = max(self._horizon, horizon_ms / self.delta_ms)
        self._arrivals.add(first_m, counts, self._horizon)
        self._fifo.arrive(first_m, counts, time_slot(self._horizon))

    def epoch(
        self,
        done_ms: float,
        completed: npt.ArrayLike,
        owner: npt.ArrayLike,
        hosts: Sequence[HostId],
        work: Mapping[HostId, Work],
        measured_ms: npt.ArrayLike | None = None,
        applied_ms: npt.ArrayLike | None = None,
    ) -> None:
        """Add an epoch whose output reached the sink at `done_ms`. Call `arriving` with its records first.

        `completed` and `measured_ms` are those of this epoch alone. No count in `completed` may be missing.
        `applied_ms` is the sum of the times from a record's arrival until its host applied it, per slot; it
        is the latency of slots, if it is known. For the other arguments see `sample`.
        """
        owners, counts = self._owners(owner), self._whole(self._counts(completed))
        self._done = max(self._done, done_ms / self.delta_ms)
        # All records are done at one known moment, and each arrived in the middle of its time slot on
        # average. So this is more accurate than counting whole time slots.
        latency = self._fifo.complete(self._done + 0.5, counts)
        self._completions.add(
            time_slot(self._done),
            self._numbers_of(hosts)[owners],
            counts,
            latency,
            None if measured_ms is None else self._counts(measured_ms),
            None if applied_ms is None else self._counts(applied_ms) / self.delta_ms,
        )
        self._service.note(hosts, owners, work)
        self._missing = _NO_SLOTS

    def waiting_ms(self) -> Floats:
        """How long records have waited in each slot by Little's law, in milliseconds."""
        backlog, rate = self._fifo.backlog(), self._arrivals.rate
        waiting = np.divide(backlog, rate, out=np.where(backlog > 0, np.inf, 0.0), where=rate > 0)
        return np.asarray(waiting * self.delta_ms)

    def vitals(
        self,
        now_ms: float,
        hosts: Sequence[HostId],
        owner: npt.ArrayLike,
        epoch_cost_ms: float = 0.0,
    ) -> Vitals:
        """Vitals at `now_ms` for these hosts. `owner` is the index into `hosts` of each slot's owner."""
        numbers = self._numbers_of(hosts)[:-1]
        now = time_slot(now_ms / self.delta_ms)
        slot, latency, measured = self._completions.averages(now, numbers)
        slot *= self.delta_ms
        latency *= self.delta_ms
        per_second = 1000.0 / self.delta_ms
        missing = self._what_is_missing()
        newest, length = self._arrivals.newest(_NEWEST)
        return Vitals(
            step=self.step,
            now_ms=now_ms,
            hosts=tuple(hosts),
            owner=self._owners(owner),
            rate=self._arrivals.rate * per_second,
            slot_latency_ms=slot,
            latency_ms=latency,
            measured_ms=measured,
            service_rate=self._service.of(hosts),
            cpu=self._service.cpu(hosts),
            backlog=self._fifo.backlog() + self.unread,
            peak_rate=self._arrivals.peak * per_second,
            newest_rate=newest * per_second,
            newest_ms=length * self.delta_ms,
            epoch_cost_ms=epoch_cost_ms,
            valid=not missing,
            missing=missing,
        )

    def forget_rates(self) -> None:
        """Forget the service rates of all hosts."""
        self._service = ServiceRates(self._decay)

    def forget_host(self, host: HostId) -> None:
        """Forget all measurements of a host that is gone. A new host may have the same name."""
        self._service.forget(host)
        number = self._numbers.forget(host)
        if number is not None:
            self._samples.disown(number)
            self._completions.forget(number)

    def _counts(self, values: npt.ArrayLike, axes: int = 1) -> Floats:
        """The values as an array for the compiled loops, which rely on its shape and type."""
        counts = np.array(values, dtype=np.float64, order="C")
        self._check(counts, axes)
        return counts

    def _whole(self, counts: Floats) -> Floats:
        if not np.all(counts >= 0):
            raise ProtocolError(
                f"a count of an epoch of step {self.step} is missing or negative",
                hint="add an epoch only when all of its counts are known",
            )
        return counts

    def _owners(self, owner: npt.ArrayLike) -> Ints:
        owners = np.array(owner, dtype=np.int64)
        self._check(owners, axes=1)
        return owners

    def _check(self, values: Floats | Ints, axes: int) -> None:
        if values.ndim != axes or values.shape[-1] != self.slots:
            raise ProtocolError(
                f"values of shape {values.shape} do not fit the {self.slots} slots of step {self.step}",
                hint="pass one value for each slot",
            )

    def _what_is_missing(self) -> str:
        if self._missing is None:
            return "nothing has been counted yet"
        missing = []
        if len(self._missing):
            missing.append(f"counts of slots {slots_to_text(self._missing.tolist())}")
        if self._service.missing:
            missing.append(f"useful time of {', '.join(self._service.missing)}")
        return "; ".join(missing)

    def _numbers_of(self, hosts: Sequence[HostId]) -> Ints:
        numbers = self._numbers.of(hosts)
        if self._numbers.many > self._completions.hosts:
            self._completions.hosts = 2 * self._numbers.many
        return numbers

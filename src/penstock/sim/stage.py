"""One step of a simulated run: its hosts, its burst workers, and what it did."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.control.events import StepRead, StepSealed, TimeSlotEnded
from penstock.control.examine.arrivals import Arrivals
from penstock.control.instructions import Treat
from penstock.control.journal.entry import Entry
from penstock.control.money import Money, Spending
from penstock.control.policies.parse import parse
from penstock.control.policies.static import Static
from penstock.control.treat.decision import Bounds, Policy, Treatment
from penstock.control.treat.offloading import OffloadSettings
from penstock.errors import SettingError
from penstock.model import SLA, HostId, StepId
from penstock.plan.epoch import Offload
from penstock.sim.burst_workers import SimWorkers
from penstock.sim.epochs import Effort, Intake, complete, helped, host_records, planned
from penstock.sim.fleet import SimFleet
from penstock.sim.ledger import Ledger
from penstock.sim.outcome import Outcome
from penstock.sim.plane import Plane

Array = npt.NDArray[Any]


class SimStage:
    """The made-up data plane of one step: what its control is told, and what it does about it."""

    def __init__(
        self,
        step: StepId,
        ledger: Ledger,
        hosts: int | None,
        plane: Plane,
        random: np.random.Generator,
        policy: str | Policy,
        bounds: Bounds,
        *,
        service_rate: float | None = None,
        warm_up_ms: float = 0.0,
        deadline_ms: float | None = None,
    ) -> None:
        """The stage begins with `hosts` hosts; None: what a static policy wants, or `bounds.at_least`.

        Where the plane has burst workers, they work off what waits within `deadline_ms` (None: the
        window of the SLA).
        """
        chosen, margin = parse(policy)
        self.bounds = bounds if margin is None else replace(bounds, margin=margin)
        """With the share that the step has now."""
        slots = ledger.arrived.shape[1]
        wanted = chosen.hosts if isinstance(chosen, Static) else None
        if hosts is None:
            hosts = bounds.at_least if wanted is None else wanted
        if not 1 <= hosts <= slots:
            raise SettingError(
                f"{hosts} hosts for {slots} slots",
                hint="begin with 1 host or more, a slot for each",
            )
        # What is static and has all its hosts never does anything: not asking it saves the time.
        settled = wanted == hosts and plane.burst_workers is None
        self.policy = None if settled else deepcopy(chosen)
        """None: nothing is examined and nothing changes."""
        self.step, self.ledger, self.plane = step, ledger, plane
        self.fleet = SimFleet(step, slots, hosts, plane, random, service_rate)
        ledger.note_hosts(hosts, 0.0)
        self.entries: list[Entry] = []
        self.decide_s: list[float] = []
        self.warm = 0
        """Burst workers that are to be kept ready."""
        self._random, self._warm_up_ms = random, warm_up_ms
        self._kinds: Counter[str] = Counter()
        self._spending, self._rows = Spending(plane.host_price), 0
        self._spending.note(0.0, hosts)
        self.pool: SimWorkers | None = None
        self.offload_settings: OffloadSettings | None = None
        """Settings of the burst workers that help it, if any do."""
        if plane.burst_workers is not None:
            rate = plane.service_rate if service_rate is None else service_rate
            self.pool = SimWorkers(plane.burst_workers, rate)
            self.offload_settings = plane.burst_workers.settings(plane.host_price, deadline_ms)

    # -- what control is told

    def time_slot(
        self, m: int, now_ms: float, counts: tuple[Array, Array, Array], whole: bool
    ) -> TimeSlotEnded:
        """Time slot m of control has ended; records that arrived and completed by now, and latencies.

        If it was not a `whole` one, nothing is counted.
        """
        fleet, (arrived, completed, measured_ms) = self.fleet, counts
        silent: frozenset[HostId] = frozenset()
        if whole and self.plane.lost_samples > 0:
            lost = self._random.random(len(fleet.hosts)) < self.plane.lost_samples
            silent = frozenset(host for host, gone in zip(fleet.hosts, lost, strict=True) if gone)
            arrived, completed = (
                np.where(lost[fleet.owner], -1.0, values) for values in (arrived, completed)
            )
        hosts, owner, work = fleet.hosts, fleet.owner, fleet.work(silent) if whole else None
        self.settle(now_ms)
        return TimeSlotEnded(
            *(now_ms, m, self.step, arrived, completed, hosts, owner, work, measured_ms),
            placement=fleet.placement,
        )

    def begin_epoch(self, intake: Intake, began_ms: float, offload: Offload | None) -> Effort:
        """An epoch begins with what has arrived: share its work out, as was decided before it."""
        if self.pool is not None and offload is not None:
            shares, workers = planned(offload, int(intake.records.sum()))
            if workers and shares.any():
                return helped(self.fleet, self.pool, intake, shares, workers, began_ms)
        return Effort.of_hosts(self.fleet, host_records(self.fleet, intake), began_ms)

    def read(self, intake: Intake, effort: Effort, began_ms: float) -> StepRead:
        """What an epoch brings, while hosts work on it."""
        waited_ms = (began_ms - intake.arrival_ms) @ intake.records
        # Control counts time slots by their ends, from 1.
        first, age_ms = intake.first + 1, intake.age_ms(began_ms)
        arrivals = Arrivals(first, intake.records, began_ms, age_ms, waited_ms)
        return StepRead(arrivals, self.fleet.placement, effort.records)

    def end_epoch(
        self, intake: Intake, effort: Effort, began_ms: float, done_ms: float, all_ms: float
    ) -> StepSealed:
        """An epoch that took what had arrived when it began is done; all steps together worked for
        `all_ms`. Slots may move now."""
        complete(self.ledger, intake, done_ms, effort.busy_ms, all_ms, self.share)
        fleet = self.fleet
        most_ms = float((effort.records * 1000.0 / fleet.service_rate).max())
        self.ledger.note_epoch(began_ms, done_ms, most_ms, effort.workers, effort.money)
        self._rows += effort.rows
        fleet.worked += effort.records
        hosts, owner = fleet.hosts, fleet.owner
        work = fleet.work() if self.policy is not None else {}
        self.settle(done_ms)
        return StepSealed(hosts, owner, work, effort.useful_ms, fleet.placement)

    # -- what it does about it

    def begin(self, treat: Treat, now_ms: float) -> tuple[Treatment, ...]:
        """Begin treatments; returns them with the names that new hosts have got."""
        self._kinds.update(treatment.kind for treatment in treat.treatments)
        named = self.fleet.begin(treat.treatments, now_ms)
        self._count_hosts(now_ms)
        return named

    def settle(self, now_ms: float) -> None:
        """Let slots move whose hosts are up by now."""
        if self.fleet.treating:
            self.fleet.settle(now_ms)
            self._count_hosts(now_ms)

    def _count_hosts(self, now_ms: float) -> None:
        self.ledger.note_hosts(self.fleet.size, now_ms)
        self.spent(now_ms)

    def spent(self, now_ms: float) -> Money:
        """So far. Asked whenever the number of hosts may change."""
        workers = 0.0 if self.pool is None else self.pool.usage.money
        self._spending.note(now_ms, self.fleet.size, workers)
        return self._spending.money

    @property
    def own_bound(self) -> SLA:
        """The step's part of an end-to-end bound."""
        return SLA(round(self.bounds.latency_ms), self.bounds.sla.window_ms)

    @property
    def share(self) -> float:
        """The same, as a part of the whole."""
        return self.bounds.share

    @share.setter
    def share(self, share: float) -> None:
        self.bounds = replace(self.bounds, share=share)

    def outcome(self, decisions: int) -> Outcome:
        """What the step did; judged without the time to warm up."""
        end_ms = len(self.ledger.arrived) * self.ledger.delta_ms
        first = round(self._warm_up_ms / self.ledger.delta_ms)
        ledger, times = self.ledger, self.decide_s
        return Outcome(
            step=self.step,
            success_by_slot=ledger.success(self.own_bound, first),
            hosts=ledger.average_hosts(self._warm_up_ms),
            treatments={kind: self._kinds[kind] for kind in ("scale_out", "scale_in", "balance")},
            arrived=round(float(ledger.arrived.sum(dtype=np.float64))),
            completed=float(ledger.completed.sum()),
            series=ledger.series(),
            journal=tuple(self.entries),
            decisions=decisions,
            decide_us=1e6 * float(np.mean(times)) if times else 0.0,
            decide_worst_us=1e6 * max(times, default=0.0),
            money=Money(
                self.plane.host_price.money(ledger.average_hosts() * end_ms / 1000.0),
                0.0 if self.pool is None else self.pool.usage.money,
            ),
            used=None if self.pool is None else self.pool.usage,
            worker_rows=self._rows,
        )

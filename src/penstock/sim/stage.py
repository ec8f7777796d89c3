"""One step of a simulated run: its hosts, its burst workers, and its ledger."""

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
    """The simulated data plane of one step: creates events for control, and carries out treatments."""

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
        """Create a stage that starts with `hosts` hosts.

        `hosts` None stands for the number of a static policy, or `bounds.at_least`. Burst workers, if the
        plane has any, should clear a backlog within `deadline_ms` (None: the window of the SLA).
        """
        chosen, margin = parse(policy)
        self.bounds = bounds if margin is None else replace(bounds, margin=margin)
        """Limits of the step, with its present share of the bound."""
        slots = ledger.arrived.shape[1]
        wanted = chosen.hosts if isinstance(chosen, Static) else None
        if hosts is None:
            hosts = bounds.at_least if wanted is None else wanted
        if not 1 <= hosts <= slots:
            raise SettingError(
                f"the step has {slots} slots and would start with {hosts} hosts",
                hint="start with 1 host or more, and no more hosts than slots",
            )
        # A static policy that has all its hosts never changes anything. Not asking it saves time.
        settled = wanted == hosts and plane.burst_workers is None
        self.policy = None if settled else deepcopy(chosen)
        """Policy of the step; None if the step is not under control."""
        self.step, self.ledger, self.plane = step, ledger, plane
        self.fleet = SimFleet(step, slots, hosts, plane, random, service_rate)
        ledger.note_hosts(hosts, 0.0)
        self.entries: list[Entry] = []
        self.decide_s: list[float] = []
        self.warm = 0
        """Number of burst workers to keep warm."""
        self._random, self._warm_up_ms = random, warm_up_ms
        self._kinds: Counter[str] = Counter()
        self._spending, self._rows = Spending(plane.host_price), 0
        self._spending.note(0.0, hosts)
        self.pool: SimWorkers | None = None
        self.offload_settings: OffloadSettings | None = None
        """Settings for the policy of burst workers; None if the step has none."""
        if plane.burst_workers is not None:
            rate = plane.service_rate if service_rate is None else service_rate
            self.pool = SimWorkers(plane.burst_workers, rate)
            self.offload_settings = plane.burst_workers.settings(plane.host_price, deadline_ms)

    # -- events for control

    def time_slot(
        self, m: int, now_ms: float, counts: tuple[Array, Array, Array], whole: bool
    ) -> TimeSlotEnded:
        """End time slot m of control. `counts` are totals of arrived and completed records, and latencies.

        If it was not a `whole` time slot, the event has no counts of work.
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
        """Begin an epoch with these records: divide its work as decided before."""
        if self.pool is not None and offload is not None:
            shares, workers = planned(offload, int(intake.records.sum()))
            if workers and shares.any():
                return helped(self.fleet, self.pool, intake, shares, workers, began_ms)
        return Effort.of_hosts(self.fleet, host_records(self.fleet, intake), began_ms)

    def read(self, intake: Intake, effort: Effort, began_ms: float) -> StepRead:
        """The arrivals of an epoch, while hosts work on it."""
        waited_ms = (began_ms - intake.arrival_ms) @ intake.records
        # Control numbers time slots by their ends, from 1.
        first, age_ms = intake.first + 1, intake.age_ms(began_ms)
        arrivals = Arrivals(first, intake.records, began_ms, age_ms, waited_ms)
        return StepRead(arrivals, self.fleet.placement, effort.records)

    def end_epoch(
        self, intake: Intake, effort: Effort, began_ms: float, done_ms: float, all_ms: float
    ) -> StepSealed:
        """End an epoch, in which all steps together worked for `all_ms`. Slots may move now."""
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

    # -- instructions of control

    def begin(self, treat: Treat, now_ms: float) -> tuple[Treatment, ...]:
        """Begin treatments. Returns them with the final names of new hosts."""
        self._kinds.update(treatment.kind for treatment in treat.treatments)
        named = self.fleet.begin(treat.treatments, now_ms)
        self._count_hosts(now_ms)
        return named

    def settle(self, now_ms: float) -> None:
        """Move slots whose new hosts are up by now."""
        if self.fleet.treating:
            self.fleet.settle(now_ms)
            self._count_hosts(now_ms)

    def _count_hosts(self, now_ms: float) -> None:
        self.ledger.note_hosts(self.fleet.size, now_ms)
        self.spent(now_ms)

    def spent(self, now_ms: float) -> Money:
        """Cost so far. Must be called whenever the number of hosts may have changed."""
        workers = 0.0 if self.pool is None else self.pool.usage.money
        self._spending.note(now_ms, self.fleet.size, workers)
        return self._spending.money

    @property
    def own_bound(self) -> SLA:
        """The step's part of an end-to-end bound."""
        return SLA(round(self.bounds.latency_ms), self.bounds.window_ms)

    @property
    def share(self) -> float:
        """The step's share of an end-to-end bound."""
        return self.bounds.share

    @share.setter
    def share(self, share: float) -> None:
        self.bounds = replace(self.bounds, share=share)

    def outcome(self, decisions: int) -> Outcome:
        """Results of the step. Success and hosts are without the warm-up time."""
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

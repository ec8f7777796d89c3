"""A trial of an elastic flow: like `tests.trials.trial`, while control moves slots and hosts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from penstock import codec
from penstock.control.elastic import Elastic
from penstock.control.examine.vitals import Vitals
from penstock.control.journal.entry import Entry
from penstock.control.treat.decision import (
    Bounds,
    Decision,
    HostHealth,
    Treatment,
    after,
    is_new,
    new_host,
)
from penstock.driver.control_loop import ControlLoop
from penstock.driver.progress import EpochProgress
from penstock.model import HostId
from penstock.plan.epoch import RouteTable
from penstock.testing.thread_hosts import StartFault, open_store
from tests.trials.cluster import MiniCluster, cluster
from tests.trials.ledger import SLOTS, Twin
from tests.trials.trial import FLOWS, Request, Trial

Order = Callable[[Vitals, Bounds], Sequence[Treatment]]
"""Function that makes treatments from vitals and bounds."""


class Watchful:
    """A policy that counts its calls. All steps and drivers of a trial share it."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        """Step -> number of calls."""
        self.ordered: Counter[str] = Counter()
        """Kind -> number of treatments that it ordered."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def decide(self, vitals: Vitals, bounds: Bounds) -> Decision:
        self.asked[vitals.step] += 1
        treatments = tuple(self.treatments(vitals, bounds))
        self.ordered.update(treatment.kind for treatment in treatments)
        hosts = tuple(
            HostHealth(host, "moderate", len(vitals.slots_of(number)), *figures)
            for number, (host, *figures) in enumerate(
                zip(
                    vitals.hosts,
                    vitals.host_rate.tolist(),
                    vitals.service_rate.tolist(),
                    vitals.latency_ms.tolist(),
                    vitals.latency_ms.tolist(),
                    strict=True,
                )
            )
        )
        return Decision("moderate", hosts, treatments, ("the test ordered it",) * bool(treatments))

    def treatments(self, vitals: Vitals, bounds: Bounds) -> Sequence[Treatment]:
        return ()


class Obedient(Watchful):
    """A policy that carries out each of the test's orders once, at the next call."""

    def __init__(self) -> None:
        super().__init__()
        self.orders: dict[str, Order] = {}

    def treatments(self, vitals: Vitals, bounds: Bounds) -> Sequence[Treatment]:
        order = self.orders.pop(vitals.step, None)
        return () if order is None else order(vitals, bounds)


class Restless(Watchful):
    """A policy that orders random treatments in most calls."""

    def __init__(self, seed: int, eager: float = 0.9) -> None:
        super().__init__()
        self.pick, self.eager = random.Random(seed), eager
        self.calm = False

    def treatments(self, vitals: Vitals, bounds: Bounds) -> Sequence[Treatment]:
        if self.calm or self.pick.random() >= self.eager:
            return ()
        made: list[Treatment] = []
        for _ in range(self.pick.choice((1, 1, 2, 3))):
            treatment = self._one(vitals, bounds)
            if treatment is not None:
                made.append(treatment)
                vitals = after(vitals, [treatment])
        return made

    def _one(self, vitals: Vitals, bounds: Bounds) -> Treatment | None:
        hosts = vitals.hosts
        owners = [n for n in range(len(hosts)) if len(vitals.slots_of(n))]
        source = self.pick.choice(owners)
        slots = vitals.slots_of(source).tolist()
        some = tuple(sorted(self.pick.sample(slots, self.pick.randint(1, len(slots)))))
        others = [host for host in hosts if host != hosts[source]]
        kinds = ["balance"] * bool(others)
        if len(hosts) < bounds.at_most:
            kinds += ["scale_out"] * 2
        leaving = [n for n in range(len(hosts)) if not is_new(hosts[n])]
        if len(hosts) > bounds.at_least and others and leaving:
            kinds.append("scale_in")
        if not kinds:
            return None
        kind = self.pick.choice(kinds)
        if kind == "scale_out":
            number = 1 + sum(is_new(host) for host in hosts)
            return Treatment("scale_out", some, hosts[source], new_host(number), "")
        if kind == "scale_in":
            source = self.pick.choice(leaving)
            others = [host for host in hosts if host != hosts[source]]
            some = tuple(vitals.slots_of(source).tolist())
            return Treatment("scale_in", some, hosts[source], self.pick.choice(others), "")
        return Treatment("balance", some, hosts[source], self.pick.choice(others), "")


def spread(vitals: Vitals, bounds: Bounds) -> list[Treatment]:
    """Two new hosts at once, for all but two slots of the host with most slots."""
    source = max(range(len(vitals.hosts)), key=lambda number: len(vitals.slots_of(number)))
    slots = vitals.slots_of(source).tolist()
    half = len(slots) // 2
    parts = (slots[1:half], slots[half:-1])
    return [
        Treatment("scale_out", tuple(part), vitals.hosts[source], new_host(number), "")
        for number, part in enumerate(parts, 1)
    ]


def gather(vitals: Vitals, bounds: Bounds) -> list[Treatment]:
    """Move all slots of the newest hosts to the two oldest, which exchange a slot or two."""
    first, second, *rest = range(len(vitals.hosts))
    moves = [
        Treatment("scale_in", tuple(vitals.slots_of(n).tolist()), vitals.hosts[n], target, "")
        for n, target in zip(
            rest, (vitals.hosts[first], vitals.hosts[second]) * SLOTS, strict=False
        )
    ]
    swapped = tuple(vitals.slots_of(first).tolist()[:2])
    return [*moves, Treatment("balance", swapped, vitals.hosts[first], vitals.hosts[second], "")]


def unborn(flow: ControlTrial, pick: random.Random) -> dict[str, StartFault]:
    """A free host name of each step, and the fault with which the host of that name fails to start."""
    faults: dict[str, StartFault] = {}
    for step in flow.cluster.flow.keyed:
        free = [
            n for n in range(2 * SLOTS) if not flow.cluster.fleet.knows(HostId(f"{step.id}/{n}"))
        ]
        faults[f"{step.id}/{free[pick.randrange(2)]}"] = pick.choice(("dies", "waits"))
    return faults


class ControlTrial(Trial):
    """An elastic flow and its model. After every epoch, the invariants of control are checked."""

    def __init__(self, name: str, on: MiniCluster, twin: Twin, policy: Watchful) -> None:
        super().__init__(name, on, twin)
        self.policy = policy
        self._numbers: dict[tuple[int, str], int] = {}
        """Driver and step -> number of hosts that were wanted after the last epoch."""

    @property
    def control(self) -> ControlLoop:
        assert self.cluster.control is not None
        return self.cluster.control

    def ask(self, request: Request) -> None:
        if request.kind != "kill":
            super().ask(request)
            return
        # The death of a host without slots is noticed only when it is to get some.
        on = self.cluster
        if owners := [host for host in on.jobs.live if on.fleet.owned(HostId(host))]:
            on.jobs.kill(owners[request.number % len(owners)])

    def entries(self, *events: str) -> list[Entry]:
        """The journal's entries of these events, from all drivers."""
        return [entry for _, entry in self.cluster.journal if entry.event in events]

    def order(self, order: Order) -> list[Treatment]:
        """Order treatments for all steps, and wait until they begin and new hosts are up; return them."""
        policy = self.policy
        assert isinstance(policy, Obedient)
        policy.orders = {step.id: order for step in self.cluster.flow.keyed}
        for _ in range(3):
            self.epoch([[], []])
            if not policy.orders:
                break
        assert not policy.orders, "nothing was decided"
        self.await_hosts()
        return self.treating()

    def treating(self) -> list[Treatment]:
        """All treatments under way."""
        controls = self.control.machine.steps.values()
        return [t for c in controls if c.course.treating for t in c.course.treating.treatments]

    def await_hosts(self) -> None:
        """Wait until all wanted hosts are up that can be."""
        on = self.cluster
        for step in on.flow.keyed:
            hosts = [host for host in on.relocation.hosts(step.id) if host not in on.start_faults]
            on.fleet.wait_for(hosts, len(hosts))

    def compare(self, progress: EpochProgress) -> None:
        self.check_journal()
        on = self.cluster
        if not on.begun:
            return  # The driver died after the epoch.
        manifest = open_store(on.store).chain(progress.epoch).manifest
        for step in on.flow.keyed:
            wanted = on.relocation.hosts(step.id)
            self._check_number(step.id, len(wanted))
            sealed = codec.from_plain(manifest.routes[step.id], RouteTable)
            routes = on.relocation.routes(step.id)
            assert sealed.hosts == routes.hosts
            assert sealed.owner.tolist() == routes.owner.tolist(), (
                "the routes are not those in force"
            )
            for number, host in enumerate(routes.hosts):
                owned = on.fleet.owned(host)
                assert owned == set(routes.slots_of(number).tolist()), (
                    f"{host} was assigned other slots"
                )
            if not on.relocation.pending_of(step.id):
                assert set(routes.hosts) <= set(wanted), "slots are on a host that left"

    def _check_number(self, step: str, hosts: int) -> None:
        """Assert that the number of hosts is within bounds, or approaches them if they were changed."""
        bounds = self.control.machine.steps[step].bounds
        place = (self.cluster.deaths["driver"], step)
        before = self._numbers.get(place, hosts)
        assert min(bounds.at_least, before) <= hosts <= max(bounds.at_most, before)
        self._numbers[place] = hosts

    def check_journal(self) -> None:
        """Assert that each treatment has ended, is under way, or its driver died; and none overlap."""
        now = self.cluster.deaths["driver"]
        under_way: dict[tuple[int, str], Entry] = {}
        for driver, entry in self.cluster.journal:
            place = (driver, entry.step)
            if entry.event == "decided" and entry.facts["treatments"]:
                grows = any(
                    treatment["kind"] == "scale_out" for treatment in entry.facts["treatments"]
                )
                assert place not in under_way or grows, "decided while a treatment was under way"
            elif entry.event == "began":
                assert (place in under_way) == entry.facts["revised"], "began twice"
                under_way[place] = entry
            elif entry.event in ("done", "failed"):
                began = under_way.pop(place)
                assert entry.facts["treatments"] == began.facts["treatments"]
        treated = {
            step
            for step, control in self.control.machine.steps.items()
            if control.course.treating is not None
        }
        assert {step for driver, step in under_way if driver == now} == treated

    def rest(self) -> None:
        """Let all treatments end, and assert that nothing else is left of them."""
        if isinstance(self.policy, Restless):
            self.policy.calm = True
        self.settle()
        for _ in range(50):
            if not self.treating() and not self._leaked():
                return
            self.epoch([[], []])
        assert not self.treating(), "a treatment does not end"
        assert not self._leaked(), "hosts that control does not know are up"

    def _leaked(self) -> set[HostId]:
        on = self.cluster
        wanted = {host for step in on.flow.keyed for host in on.relocation.hosts(step.id)}
        return set(on.fleet._members) - wanted


@contextmanager
def control_trial(
    name: str,
    store: str,
    policy: Watchful,
    at_least: int = 1,
    at_most: int = 4,
    dry_run: bool = False,
    **kwargs: Any,
) -> Iterator[ControlTrial]:
    flow, twin = FLOWS[name]
    elastic = Elastic(policy, at_least=at_least, at_most=at_most, dry_run=dry_run)
    # Every epoch may bring a treatment here, even the first.
    with cluster(flow, store, elastic=elastic, warm_epochs=0, **kwargs) as on:
        yield ControlTrial(name, on, twin(), policy)

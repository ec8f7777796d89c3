"""Division of hot slots, and a closed loop in which control splits one and puts it together again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.control import events as ev
from penstock.control import instructions as do
from penstock.control.examine.arrivals import arrivals_of
from penstock.control.examine.vitals import Work
from penstock.control.machine import ControlledStep, FlowControl, Habits
from penstock.control.policies.switch import Switch
from penstock.control.treat.decision import Bounds, is_new
from penstock.control.treat.splitting import divide
from penstock.model import SLA, HostId, StepId
from penstock.plan.migration import Migration
from penstock.plan.topology import Topology
from penstock.state.arrays import Array
from penstock.state.keys.codec import int_keys
from penstock.state.keys.slot_map import SlotMap, less
from penstock.wire.report import HotKeyCount, Seen

SLOT = [(1 << 60, (1 << 61) - 1)]


@given(
    shares=st.lists(st.floats(0.001, 1.0), max_size=12),
    rest=st.floats(0.0, 5.0),
    room=st.floats(0.1, 2.0),
)
def test_a_division_loses_no_hash_and_is_about_even(
    shares: list[float], rest: float, room: float
) -> None:
    keys = {(1 << 60) + 1000 * n: share for n, share in enumerate(shares)}
    rate = sum(shares) + rest
    division = divide(SLOT, keys, rate, room)
    if division is None:
        return
    taken = [range for part in division.parts for range in part]
    assert not less(taken, SLOT), "a part has hashes of another slot"
    assert sum(last - first + 1 for first, last in taken) + sum(
        last - first + 1 for first, last in less(SLOT, taken)
    ) == (1 << 60), "two parts have the same hash"
    assert sum(division.rates) == pytest.approx(rate)
    largest = max([*shares, 0.0])
    assert max(division.rates) <= max(2 * rate / len(division.rates), largest) + 0.06 * rate


RATES = {
    key: 300.0 for key in range(10_000) if SlotMap(8).of(int_keys(np.array([key])).hashes)[0] == 3
}
MIDDLING = dict(list(RATES.items())[:6])
"""Keys of slot 3 with 300 records/s each."""
SERVICE = 1000.0
"""Records per second that a host can process."""


class Loop:
    """Control and a topology, over hosts that process their records at a fixed pace."""

    def __init__(self, rates: dict[int, float]) -> None:
        self.rates = rates
        bounds = Bounds(SLA(1000, 1000), at_least=1, at_most=8)
        step = ControlledStep(StepId("sum"), 8, Switch(), bounds)
        self.machine = FlowControl([step], Habits(warm_epochs=1))
        self.hosts = [HostId("sum/0"), HostId("sum/1")]
        self.topology = Topology(StepId("sum"), 8, self.hosts)
        self.now_ms, self.since_ms, self.epoch = 0.0, -250.0, 0
        self.loads: list[float] = []
        """Records per second of the busiest host, by epoch."""
        self.told: list[str] = []
        """What the journal says about splits."""

    def run(self, seconds: float) -> None:
        end_ms = self.now_ms + 1000 * seconds
        while self.now_ms < end_ms:
            self._epoch()

    def _epoch(self) -> None:
        self.topology.advance(self.epoch - 1, self.hosts, Migration.parse("lazy"))
        routes, began_ms = self.topology.routes, self.now_ms
        keys = np.array(list(self.rates))
        hashes = int_keys(keys).hashes
        slots = routes.slots.of(hashes)
        seconds = (began_ms - self.since_ms) / 1000
        rows = np.round(np.array(list(self.rates.values())) * seconds).astype(np.int64)
        counts = np.bincount(slots, rows, routes.slots.count).astype(np.int64)
        self._handle(ev.EpochBegan(began_ms, self.epoch))
        watched = self.machine.orders.steps["sum"].watched
        hot = tuple(
            HotKeyCount("sum", int(slot), f"k={key}", int(count), int(hash))
            for key, slot, count, hash in zip(keys, slots, rows, hashes, strict=True)
            if slot in watched
        )
        seen = Seen(int(rows.sum()), loads={"sum": counts}, hot=hot)
        idle = [host for host in self.topology.hosts if host not in routes.hosts]
        owner = routes.owner.astype(np.int64)
        place = ev.StepPlacement((*routes.hosts, *idle), owner, splits=routes.splits)
        arrivals = arrivals_of("sum", len(counts), [seen], 100.0, self.since_ms, began_ms)
        self._handle(
            ev.EpochRead(began_ms, self.epoch, {"sum": ev.StepRead(arrivals, place)}, look=False)
        )
        records = np.bincount(owner, counts, len(routes.hosts))
        self.loads.append(float(records.max()) / seconds)
        work = {
            host: Work(int(n), 1000 * float(n) / SERVICE)
            for host, n in zip(routes.hosts, records, strict=True)
        }
        spent_ms = max(done.useful_ms for done in work.values())
        self.since_ms, self.now_ms = began_ms, began_ms + max(250.0, spent_ms + 20.0)
        place = replace(place, pending=self.topology.pending)
        sealed = ev.StepSealed(routes.hosts, owner, work, spent_ms, place)
        times = (self.now_ms, self.epoch, self.now_ms, self.now_ms)
        self._handle(ev.EpochSealed(*times, {"sum": sealed}, (seen,)))
        self.epoch += 1

    def _handle(self, event: ev.Event) -> None:
        for order in self.machine.handle(event):
            if isinstance(order, do.SplitSlot):
                self.topology.split(order.parts)
            elif isinstance(order, do.UniteSlots):
                self.topology.unite(order.slots)
            elif isinstance(order, do.Tell) and order.entry.event == "split":
                self.told.append(order.entry.text)
            elif isinstance(order, do.Stay):
                self.topology.stay()
            elif isinstance(order, do.Treat):
                self._treat(order)

    def _treat(self, order: do.Treat) -> None:
        new = list(dict.fromkeys(t.target for t in order.treatments if is_new(t.target)))
        names = {host: HostId(f"sum/{len(self.hosts) + n}") for n, host in enumerate(new)}
        self.hosts += names.values()
        leaving = {t.source for t in order.treatments if t.kind == "scale_in"}
        wanted = [h for h in self.topology.hosts if h not in leaving] + list(names.values())
        named = tuple(replace(t, target=names.get(t.target, t.target)) for t in order.treatments)
        self.topology.treat(wanted, [(t.slots, t.target) for t in named])
        started = tuple(names.values())
        self._handle(ev.TreatmentBegun(self.now_ms, order.epoch, "sum", named, started))


def test_a_hot_slot_that_no_single_key_explains_is_split_and_made_whole_again() -> None:
    loop = Loop(MIDDLING)
    loop.run(60)
    assert loop.loads[0] == pytest.approx(1800, rel=0.05), "all six keys are in one slot"
    assert loop.loads[-1] < SERVICE, "the busiest host can keep up now"
    assert "no single key explains it" in loop.told[0]
    assert len(set(loop.topology.routes.owner[loop.topology.map.of(_hashes(MIDDLING))])) >= 3
    loop.rates = dict.fromkeys(MIDDLING, 10.0)
    loop.run(90)
    assert loop.topology.map == SlotMap(8)
    assert "little load" in loop.told[-1]


def test_a_slot_of_many_small_keys_is_split_by_hashes() -> None:
    loop = Loop(dict.fromkeys(list(RATES)[:225], 8.0))
    loop.run(60)
    assert loop.loads[0] == pytest.approx(1800, rel=0.05)
    assert loop.loads[-1] < SERVICE


def test_a_slot_of_one_hot_key_is_not_split() -> None:
    first, *_ = MIDDLING
    loop = Loop({first: 1800.0})
    loop.run(10)
    assert not loop.topology.map.splits
    assert not loop.told
    assert loop.machine.steps["sum"].hot.keys


def _hashes(rates: dict[int, float]) -> Array:
    return int_keys(np.array(list(rates))).hashes

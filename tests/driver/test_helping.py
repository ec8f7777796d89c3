"""A large epoch is shared with new hosts as soon as they are ready, and the slots move after it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np

from penstock.driver.helping import Helping
from penstock.faults import Fault, armed
from penstock.model import HostId, StepId
from penstock.operators.operator import EpochTime
from penstock.plan.epoch import EpochPlan, RouteTable, StepRoutes
from penstock.plan.migration import Migration
from penstock.plan.topology import Topology
from penstock.state.keys.codec import int_keys, slots_of
from penstock.testing import Pace
from tests.trials.cluster import PLAIN, MiniCluster, cluster
from tests.trials.control_trial import Obedient, Watchful, control_trial, spread
from tests.trials.ledger import SLOTS, SUMS
from tests.trials.trial import Turn, trial

RATE = 1_000
"""Records per second of a host."""
ROWS = 6_000
SETTINGS = replace(PLAIN, piece_ms=50.0)


class Diary:
    """The times at which hosts work, with a host's pace."""

    def __init__(self) -> None:
        self.worked_s: dict[str, list[float]] = {}
        self._pace = Pace(RATE)

    def __call__(self, facts: Mapping[str, Any]) -> float:
        self.worked_s.setdefault(facts["host"], []).append(time.monotonic())
        return self._pace(facts)


def ready(on: MiniCluster, hosts: list[HostId]) -> float:
    """Wait until these hosts are ready; return that time in seconds."""
    while len(on.fleet.ready(hosts)) < len(hosts):
        time.sleep(0.005)
    return time.monotonic()


@contextmanager
def scaled_within(on: MiniCluster, hosts: int, after_s: float) -> Iterator[list[float]]:
    """Scale the step some time after the block has begun; yield a list for the time when they were ready."""
    times: list[float] = []

    def scale() -> None:
        time.sleep(after_s)
        on.relocation.scale("sums", hosts)
        times.append(ready(on, on.relocation.hosts("sums")))

    thread = threading.Thread(target=scale)
    thread.start()
    try:
        yield times
    finally:
        thread.join()


def rows(number: int) -> list[list[dict[str, int]]]:
    return [[{"k": n, "v": n} for n in range(part, number, 2)] for part in range(2)]


def test_new_hosts_share_a_large_epoch_within_a_second_of_being_ready(tmp_path: Path) -> None:
    """An epoch of six seconds' work: with three more hosts after a second of it, it takes less than half."""
    diary = Diary()
    with (
        cluster(SUMS, str(tmp_path), hosts=1, settings=SETTINGS) as on,
        armed(Fault("host.work", diary, hits=())),
    ):
        on.run(rows(200))
        began_s = time.monotonic()
        with scaled_within(on, hosts=4, after_s=1.0) as ready_s:
            progress = on.run(rows(ROWS))
        took_s = time.monotonic() - began_s
        new = [host for host in on.relocation.hosts("sums") if host != "sums/0"]
        for host in new:
            assert diary.worked_s[host][0] - ready_s[0] < 1.0, "it was idle"
        assert progress.migration.helped_rows > ROWS / 3
        assert took_s < ROWS / RATE * 0.6
        assert len(on.sink[1]) == ROWS
        # the slots move after the epoch, as they would without help
        assert {host.host for host in progress.hosts} == {"sums/0"}
        after = on.run(rows(200))
        assert {host.host for host in after.hosts} == {"sums/0", *new}
        assert not after.migration.helped_rows


def test_a_host_that_has_done_its_own_work_helps_one_with_more(tmp_path: Path) -> None:
    """Nine of ten rows are for one of two hosts. No slot moves."""
    diary = Diary()
    with (
        cluster(SUMS, str(tmp_path), hosts=2, settings=SETTINGS) as on,
        armed(Fault("host.work", diary, hits=())),
    ):
        on.run(rows(200))
        keys = np.arange(8 * ROWS, dtype=np.int64)
        slots = slots_of(int_keys(keys).hashes, SLOTS)
        first = np.isin(slots, slots[0])
        chosen = [*keys[first][:1_800].tolist(), *keys[~first][:200].tolist()]
        table = on.relocation.routes("sums")
        busy = table.hosts[table.owner[slots[0]]]
        (idle,) = set(table.hosts) - {busy}
        on.relocation.lend(1, {busy: (idle,)})
        progress = on.run([[{"k": k, "v": 1} for k in chosen[part::2]] for part in range(2)])
        assert progress.migration.helped_rows > 300
        assert len(on.sink[1]) == len(chosen)
        assert not on.relocation.pending_of("sums")
        assert not on.run(rows(200)).migration.helped_rows, "the order was for one epoch"


def test_control_lends_hosts_in_an_uneven_epoch(tmp_path: Path) -> None:
    settings = replace(SETTINGS, faults=(*PLAIN.faults, Fault("host.work", Pace(400), hits=())))
    with control_trial("sums", str(tmp_path), Watchful(), hosts=2, settings=settings) as flow:
        flow.take(Turn(1, rows=40))
        flow.cluster.relocation.move("sums", range(1, SLOTS), "sums/0")
        flow.take(Turn(2, rows=40))
        flow.rest()
        before = flow.moved["helped rows"]
        # The host's rate is measured on 40 rows, and may be estimated to be twice as high as it is. So there
        # are rows enough for half a second above the mean at any rate.
        for turn in range(3, 6):  # on a crowded machine the idle host may be late
            flow.take(Turn(turn, rows=2_400))
            if flow.moved["helped rows"] > before:
                break
        assert flow.moved["helped rows"] > before
        assert not flow.entries("began")
        flow.check()


def test_the_early_look_brings_help_in_the_same_epoch(tmp_path: Path) -> None:
    """Treatments of an early decision begin to work in the epoch that caused them. The journal says so, and
    the treatments are done after it, as ever."""
    settings = replace(SETTINGS, faults=(*PLAIN.faults, Fault("host.work", Pace(400), hits=())))
    with control_trial("sums", str(tmp_path), Obedient(), hosts=1, settings=settings) as flow:
        flow.take(Turn(1, rows=40))
        policy = flow.policy
        assert isinstance(policy, Obedient)
        policy.orders = {"sums": spread}
        flow.take(Turn(2, rows=800))
        assert flow.moved["helped rows"]
        (entry,) = flow.entries("helped")
        assert entry.text.startswith(f"in the middle of epoch {entry.epoch}, helpers applied")
        assert entry.facts["rows"] == flow.moved["helped rows"]
        flow.rest()
        assert flow.entries("done")
        flow.check()


def test_no_work_is_shared_while_all_slots_are_where_they_should_be(tmp_path: Path) -> None:
    settings = replace(SETTINGS, piece_ms=0.0)
    with trial("sums", str(tmp_path), hosts=3, settings=settings) as flow:
        flow.take(Turn(1, rows=60))
        flow.take(Turn(2, rows=60))
        assert not flow.moved["helped rows"]


def test_the_new_home_of_a_pending_slot_helps_its_owner() -> None:
    a, b, c = HostId("sum/0"), HostId("sum/1"), HostId("sum/2")
    topology = Topology(StepId("sum"), 4, [a, b, c])
    lazy = Migration.parse("lazy")
    topology.advance(-1, [a, b], lazy)
    assert topology.helpers([a, b]) == {}
    waiting = {topology.routes.hosts[n] for n in topology.routes.owner[topology.slots_of(c)]}
    assert waiting == set()
    owners = {host for host in (a, b) if topology.helpers([a, b, c]).get(host)}
    assert owners
    assert all(topology.helpers([a, b, c])[owner] == [c] for owner in owners)
    topology.advance(0, [a, b, c], lazy)
    assert topology.helpers([a, b, c]) == {}


@dataclass
class Pretended:
    """A relocation with these helpers, and a fleet whose orders are put into a queue."""

    found: dict[HostId, list[HostId]]
    orders: Queue[tuple[HostId, tuple[HostId, ...]]] = field(default_factory=Queue)
    asked: Queue[None] = field(default_factory=Queue)

    def helpers(self, epoch: int) -> dict[HostId, list[HostId]]:
        self.asked.put(None)
        return {host: list(helpers) for host, helpers in self.found.items()}

    def help(self, host: HostId, helpers: list[HostId], epoch: int, run: int) -> None:
        self.orders.put((host, tuple(helpers)))


def test_a_host_that_is_ready_late_helps_all_owners_of_its_step() -> None:
    """Slots of one owner will move to it. When that one is done, it would be idle."""
    first, second, other, new = map(HostId, ("sums/0", "sums/1", "more/0", "sums/2"))
    steps = tuple(
        StepRoutes(StepId(step), RouteTable.even(list(hosts), SLOTS), (), EpochTime(3, 0))
        for step, hosts in (("sums", (first, second)), ("more", (other,)))
    )
    on = Pretended({})
    helping = Helping(on, on, wanted=True)  # type: ignore[arg-type]
    helping.begin(EpochPlan(3, 0, 2, steps, "driver"))
    try:
        on.asked.get(timeout=10)
        on.found = {first: [new]}
        assert [on.orders.get(timeout=10) for _ in range(2)] == [(first, (new,)), (second, (new,))]
        while not on.asked.empty():
            on.asked.get()
        for _ in range(2):
            on.asked.get(timeout=10)
        assert on.orders.empty(), "told twice, or a host of another step"
    finally:
        helping.stop()


def test_the_vitals_of_an_epoch_have_all_of_its_work(tmp_path: Path) -> None:
    """The driver asks for the seal while the sink still writes, and once more at the end of the epoch."""
    with (
        cluster(SUMS, str(tmp_path), hosts=1, settings=PLAIN) as on,
        armed(Fault("host.work", Pace(RATE), hits=())),
    ):
        for _ in range(2):
            (host,) = on.run(rows(200)).hosts
            assert host.useful_ms >= 0.99 * 1000 * 200 / RATE

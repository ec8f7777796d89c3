"""Records that wait in a courier keep their order, also when their slots move to another host."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from penstock.live.backlog import Backlog, HostPace, WaitingRecords
from penstock.model import HostId
from penstock.plan.epoch import RouteTable

SLOTS = 8


def waiting(of: int, slots: list[int], kind: str = "rows") -> WaitingRecords:
    batch = pa.record_batch({"slot": slots, "of": [of] * len(slots), "n": range(len(slots))})
    return WaitingRecords(of, kind, batch, np.array(slots), of, float(of))


def routes(pick: random.Random) -> RouteTable:
    hosts = tuple(HostId(name) for name in ("a", "b", "c"))
    return RouteTable(hosts, np.array([pick.randrange(3) for _ in range(SLOTS)], np.int32))


@pytest.mark.parametrize("seed", range(20))
def test_records_of_a_slot_keep_their_order_through_reroutes(seed: int) -> None:
    pick, backlog = random.Random(seed), Backlog()
    table, sent, put = routes(pick), list[dict[str, int]](), list[dict[str, int]]()
    for of in range(40):
        slots = [pick.randrange(SLOTS) for _ in range(pick.randrange(1, 30))]
        whole = waiting(of, slots, pick.choice(("rows", "partials")))
        put += whole.batch.to_pylist()
        for number in np.unique(table.owner[whole.slots]).tolist():
            own = table.owner[whole.slots] == number
            some = waiting(of, whole.slots[own].tolist(), whole.kind)
            some = WaitingRecords(
                of, some.kind, whole.batch.filter(pa.array(own)), some.slots, of, 0.0
            )
            backlog.put(table.hosts[number], some)
        for host in backlog.hosts:
            if pick.random() < 0.4:
                taken = backlog.take(host, pick.choice((1, 5, 1000)))
                assert len({records.kind for records in taken}) == 1
                for records in taken:
                    assert records.slots.tolist() == records.batch.column("slot").to_pylist()
                    assert {table.hosts[n] for n in table.owner[records.slots].tolist()} == {host}
                sent += [row for records in taken for row in records.batch.to_pylist()]
        if pick.random() < 0.3:
            table = routes(pick)
            backlog.route(backlog.hosts, table)
    while backlog:
        taken = backlog.take(backlog.hosts[0], 1000)
        sent += [row for records in taken for row in records.batch.to_pylist()]
    for slot in range(SLOTS):
        assert [r for r in sent if r["slot"] == slot] == [r for r in put if r["slot"] == slot]


def test_the_watermark_does_not_pass_waiting_records() -> None:
    backlog = Backlog()
    backlog.put("a", waiting(7, [0]))
    backlog.put("b", waiting(5, [1]))
    assert backlog.watermark_ms == 5
    backlog.take("b", 1)
    assert backlog.watermark_ms == 7


@pytest.mark.parametrize("rate", [500.0, 20_000.0, 1_000_000.0])
def test_a_host_gets_no_more_than_it_can_apply_in_time(rate: float) -> None:
    pace, now = HostPace(within_s=0.040), 0.0
    for number in range(200):
        rows = int(pace.most)
        pace.sent(number, rows, now)
        now += rows / rate + 0.002
        pace.applied(number, now)
    assert pace.most <= max(16.0, rate * 0.040)
    assert pace.most >= max(16.0, rate * 0.040) / 4

"""A flow in micro-batches between two topics of a real broker, with Spark's connector, in its own process:
state and output are those of a batch computation, whatever is stopped, killed or restarted meanwhile."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock.console.checkpoint.checkpoint import Checkpoint
from penstock.control.epoch_bound import FIRST, LEAST_ROWS, rows_within
from penstock_bench.broker import Broker
from tests.kafka.driving import FlowProcess, is_gone, wait
from tests.kafka.orders import USERS, Orders

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]
STEP = "aggregate-1"
AWAY_S = 65
"""Seconds that the broker is down: longer than its limit for a transaction."""
BACK_S = 30
"""Seconds to wait for three epochs after that: enough for a busy machine."""
Totals = dict[str, tuple[int, int]]


class MicroProcess(FlowProcess):
    """A flow of `micro_process` in its own process."""

    module = "tests.kafka.micro_process"


def totals(orders: Orders) -> Totals:
    """User -> orders and their total amount, by a batch computation."""
    totals: Totals = {"the end": (orders.partitions, 0)}
    for user, amount, _ in orders.sent:
        n, total = totals.get(user, (0, 0))
        totals[user] = (n + 1, total + amount)
    return totals


def rows_of(messages: Iterable[Any]) -> list[tuple[str, tuple[int, int], int, int]]:
    """User, values, epoch and run of the messages in a topic."""
    rows = []
    for message in messages:
        row, headers = json.loads(message.value()), dict(message.headers())
        epoch = int(headers["penstock-id"].split(b"-")[1])
        run, since = map(int, headers["penstock-run"].split(b"-"))
        assert message.key().decode() == row["user"]
        assert since == epoch
        rows.append((row["user"], (row["n"], row["total"]), epoch, run))
    return rows


def state(checkpoint: str) -> Totals:
    entries = Checkpoint(checkpoint).entries(STEP, None, 10 * USERS).entries
    return {e.key["user"]: (e.state["count(*)"], e.state["sum(amount)"]) for e in entries}


@pytest.mark.parametrize("delivery", ["at_once", "transactional"])
def test_a_flow_in_micro_batches_survives_everything(
    kafka: Broker, delivery: str, tmp_path: Path
) -> None:
    name = f"micro-{delivery}"
    topic, out, checkpoint = kafka.create(name, 3), kafka.create(f"{name}-out"), tmp_path / "c"
    arguments, log = (kafka.servers, topic, out, str(checkpoint), delivery), tmp_path / "log"
    orders = Orders(kafka.servers, topic)
    flow = MicroProcess(*arguments, log=log)
    try:
        flow.until("query.is_active")
        orders.start()
        goes_on(flow)

        if delivery == "at_once":  # A regular stop, and new partitions.
            flow.stop()
            flow = MicroProcess(*arguments, log=log)
            goes_on(flow)
            kafka.grow(topic, 4)
            orders.use(partitions=4)
            flow.until("query.progress[-1].partitions == 4")
            goes_on(flow)
        kafka.kill()
        time.sleep(AWAY_S)
        kafka.start()
        back = time.monotonic()
        goes_on(flow)
        assert time.monotonic() - back < BACK_S

        flow.until("query.status.message == 'running'")
        tasks = flow.kill()  # At any point of an epoch: one is always running.
        flow = MicroProcess(*arguments, log=log)
        goes_on(flow)
        wait(lambda: all(is_gone(pid) for pid in tasks))
        orders.end()
        wanted = totals(orders)
        wait(lambda: newest(rows_of(kafka.messages(out))) == wanted)
        flow.stop()
    finally:
        flow.end()
        orders.end() if orders.is_alive() else None
    assert state(str(checkpoint)) == wanted
    rows = rows_of(kafka.messages(out))
    if delivery == "at_once":  # Repeated rows have the same epoch and a later run.
        last: dict[int, int] = {}
        for _, _, epoch, run in rows:
            last[epoch] = max(run, last.get(epoch, 0))
        rows = [row for row in rows if row[3] == last[row[2]]]
    assert max(Counter((user, epoch) for user, _, epoch, _ in rows).values()) == 1
    assert newest(rows) == wanted


def newest(rows: Iterable[tuple[str, tuple[int, int], int, int]]) -> Totals:
    latest: Totals = {}
    for user, values, _, _ in rows:
        latest[user] = max(latest.get(user, values), values)
    return latest


def goes_on(flow: FlowProcess) -> None:
    """Wait for three further epochs with rows."""
    epoch = flow.ask("query.progress[-1].epoch if query.progress else -1")
    flow.until(f"len([p for p in query.progress if p.epoch > {epoch} and p.rows]) >= 3")


def test_a_backlog_of_an_hour_is_caught_up_with_bounded_epochs(
    kafka: Broker, tmp_path: Path
) -> None:
    topic, out = kafka.create("backlog", 3), kafka.create("backlog-out")
    users, rate, now_ms = 500, 100, int(time.time() * 1000)
    rows = 3600 * rate
    kafka.produce(
        topic,
        (
            {
                "value": b'{"user": "u%d", "amount": %d}' % (n % users, n % 7),
                "partition": n % 3,
                "timestamp": now_ms - 3_600_000 + n * 1000 // rate,
            }
            for n in range(rows)
        ),
    )
    arguments = (kafka.servers, topic, out, str(tmp_path / "c"), "at_once", "2s")
    log = tmp_path / "log"
    flow = MicroProcess(*arguments, log=log)
    try:
        flow.until("query.progress")
        wait(lambda: sum(n for n, _ in newest(rows_of(kafka.messages(out))).values()) == rows)
        epochs = flow.ask(
            "[(p.rows, p.latency and p.latency.mean_ms, p.started_ms) for p in query.progress]"
        )
        # After the catch-up, latency is low again.
        sent = [{"value": b'{"user": "u1", "amount": 1}', "partition": n % 3} for n in range(300)]
        for first in range(0, 300, 30):
            kafka.produce(topic, sent[first : first + 30])
            done = rows + first + 30
            flow.until(f"sum(p.rows for p in query.progress) == {done}")
        latest = flow.ask("[p.latency.mean_ms for p in query.progress if p.latency][-5:]")
        flow.stop()
    finally:
        flow.end()
    sizes = [size for size, _, _ in epochs]
    first = rows_within(2_000, FIRST)
    assert sizes[0] <= first
    bounds = [first] + [
        int(line.split("up to ")[1].split()[0])
        for line in log.read_text().splitlines()
        if "Epochs take up to" in line
    ]
    assert all(bound >= LEAST_ROWS for bound in bounds)
    assert max(sizes) <= max(bounds)
    assert len([size for size in sizes if size > 0.9 * min(bounds)]) >= rows / max(bounds) / 2
    latencies = [latency for _, latency, _ in epochs if latency]
    assert latencies[0] > 3_000_000 > latencies[-1], "latency is that of the broker's timestamps"
    assert max(latest) < 60_000
    assert sorted(latest)[0] < 2_000
    pace = json.loads(next((tmp_path / "c").rglob("pace.json")).read_text())
    assert pace["rows_per_s"] > 0

"""A live flow between two topics of a real broker, in its own process, through all kinds of failures: state
and output are those of a batch computation."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.console.checkpoint.checkpoint import Checkpoint
from penstock_bench.broker import Broker
from tests.kafka.driving import FlowProcess, is_gone, wait
from tests.kafka.flow_process import FIRST, SECOND
from tests.kafka.orders import USERS, Orders, Output, counting, newest

pytestmark = pytest.mark.kafka


@contextmanager
def stopped(pid: int, seconds: float) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_flow_survives_everything(kafka: Broker, topic: str, tmp_path: Path) -> None:
    checkpoint, log = str(tmp_path / "checkpoint"), tmp_path / "log"
    arguments = (kafka.servers, topic, kafka.create(f"{topic}-out"), checkpoint, "at_once")
    orders, output = Orders(*arguments[:2]), Output(arguments[0], arguments[2])
    flow = FlowProcess(*arguments, log=log)
    try:
        flow.until("query.progress")  # The topic has no rows yet.
        orders.start()
        flow.goes_on()

        for hosts in (3, 2):
            flow.ask(f"query.scale({FIRST!r}, {hosts})")
            flow.until(f"len(query.status.hosts) == {hosts} + 2 and not query.status.pending_slots")
        for step, target in ((FIRST, 1), (SECOND, 0)):
            flow.ask(f"query.move({step!r}, range(8), '{step}/{target}')")
        kafka.grow(topic, 4)
        flow.until("query.progress[-1].partitions == 4")
        orders.use(partitions=4)
        flow.goes_on()
        assert "is run again" not in log.read_text(), "nothing has failed so far"

        for name in (f"{FIRST}/0", "courier/0", f"{SECOND}/1", "courier/1"):
            os.kill(flow.pid(name), signal.SIGKILL)
            flow.goes_on()
        for name in (f"{FIRST}/1", "courier/0"):
            pid = flow.pid(name)
            os.kill(pid, signal.SIGSTOP)
            flow.until(f"{pid} not in (query.status.hosts | query.status.couriers).values()")
            flow.goes_on()

        with stopped(kafka.process.pid, 3):
            pass
        flow.goes_on()
        kafka.kill()
        time.sleep(1)
        kafka.start()
        flow.goes_on()

        tasks = flow.kill()
        flow = FlowProcess(*arguments, log=log)
        flow.goes_on()
        wait(lambda: all(is_gone(pid) for pid in tasks))
        orders.end()
        wanted = orders.totals()
        wait(lambda: newest(output.rows) == wanted)
        flow.until(f"query.progress[-1].epoch > {flow.ask('query.progress[-1].epoch')}")
        flow.stop()
    finally:
        flow.end()
        orders.end() if orders.is_alive() else None
        output.end()
    assert len(wanted) == USERS
    rows = counting(output.rows)
    assert newest(rows) == wanted
    assert max(Counter((row.user, row.values[0]) for row in rows).values()) == 1
    assert len({row.run for row in output.rows}) >= 8
    assert state(checkpoint) == wanted
    traces = [line for line in log.read_text().splitlines() if line.startswith("\tat ")]
    assert not traces


def test_committed_rows_are_seen_once(kafka: Broker, topic: str, tmp_path: Path) -> None:
    """Couriers and drivers die between the end of an epoch and its transaction."""
    checkpoint, log = str(tmp_path / "checkpoint"), tmp_path / "log"
    arguments = (kafka.servers, topic, kafka.create(f"{topic}-out"), checkpoint, "transactional")
    orders, output = Orders(*arguments[:2]), Output(arguments[0], arguments[2], committed=True)
    flow = FlowProcess(*arguments, "courier.flushed", "courier.release", log=log)
    try:
        orders.start()
        for _ in range(3):
            flow.goes_on()
        flow.kill()
        flow = FlowProcess(*arguments, "courier.released", log=log)
        for _ in range(3):
            flow.goes_on()
        flow.kill()
        for point in ("driver.sealed", "driver.committed"):
            flow = FlowProcess(*arguments, point, log=log)
            flow.died()
        flow = FlowProcess(*arguments, log=log)
        flow.goes_on()
        orders.end()
        wanted = orders.totals()
        wait(lambda: newest(output.rows) == wanted)
        flow.stop()
    finally:
        flow.end()
        orders.end() if orders.is_alive() else None
        output.end()
    seen = Counter((row.user, row.values[0]) for row in output.rows)
    assert set(seen.values()) == {1}, "each row is seen once"
    assert len({row.run for row in output.rows}) >= 6, "there were deaths"
    assert state(checkpoint) == wanted
    assert not (tmp_path / "checkpoint" / "outbox").exists() or not list(
        (tmp_path / "checkpoint" / "outbox").glob("*/*")
    )


def state(checkpoint: str) -> dict[str, tuple[int, int, int]]:
    """User -> its state in the store."""
    entries = Checkpoint(checkpoint).entries(SECOND, None, 10 * USERS).entries
    columns = ("count(*)", "sum(n)", "sum(total)")
    stored = {e.key["user"]: tuple(e.state[column] for column in columns) for e in entries}
    return {user: (windows, n, total) for user, (windows, n, total) in stored.items()}

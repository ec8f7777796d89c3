"""Orders that a producer sends while parts fail, their totals by a batch computation, and the rows that a
consumer gets, with and without repeats."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place

USERS = 50
_END = datetime(2100, 1, 1, tzinfo=UTC)


class Orders(threading.Thread):
    """Sends hundreds of orders per second to a topic, with keys and event times that are up to half a second
    out of order, and remembers them."""

    def __init__(self, servers: str, topic: str, rate: int = 400) -> None:
        super().__init__(name="orders", daemon=True)
        self._topic, self._rate, self._random = topic, rate, random.Random(16)
        self._halted, self._lost = threading.Event(), 0
        self._producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 2}
        )
        self.partitions = 3
        """Number of the topic's partitions that orders are sent to."""
        self.sent: list[tuple[str, int, datetime]] = []

    def run(self) -> None:
        began = time.monotonic()
        while not self._halted.wait(0.005):
            while len(self.sent) < (time.monotonic() - began) * self._rate:
                late = timedelta(seconds=self._random.random() / 2)
                user = f"u{self._random.randrange(USERS)}"
                self._send(user, self._random.randrange(100), datetime.now(UTC) - late)
            self._producer.poll(0)

    def use(self, partitions: int) -> None:
        """Send to this number of partitions from now on; wait until the producer knows them."""
        while (
            len(self._producer.list_topics(self._topic, 10).topics[self._topic].partitions)
            < partitions
        ):
            time.sleep(0.05)
        self.partitions = partitions

    def end(self) -> None:
        """Stop sending, after rows that close all windows."""
        self._halted.set()
        self.join()
        for partition in range(self.partitions):
            self._send("the end", 0, _END, partition)
        assert not self._producer.flush(60)
        assert not self._lost

    def _send(self, user: str, amount: int, at: datetime, partition: int | None = None) -> None:
        if user != "the end":
            self.sent.append((user, amount, at))
        if partition is None:  # Not by key: several couriers get the rows of a user.
            partition = self._random.randrange(self.partitions)
        value = json.dumps({"user": user, "amount": amount, "at": at.isoformat()})
        self._producer.produce(self._topic, value, user, partition, on_delivery=self._note)

    def _note(self, error: Any, message: Any) -> None:
        self._lost += error is not None

    def totals(self) -> dict[str, tuple[int, int, int]]:
        """User -> windows, orders, and their total amount, by a batch computation."""
        windows: dict[str, set[datetime]] = {}
        totals: dict[str, tuple[int, int, int]] = {}
        for user, amount, at in self.sent:
            windows.setdefault(user, set()).add(at.replace(microsecond=0))
            _, n, total = totals.get(user, (0, 0, 0))
            totals[user] = (len(windows[user]), n + 1, total + amount)
        return totals


class Got(NamedTuple):
    """A row that a consumer got, and its origin."""

    user: str
    values: tuple[int, int, int]
    epoch: int
    run: int
    since: int
    earlier: tuple[tuple[int, int], ...] = ()


class Output(threading.Thread):
    """Consumes a topic of one partition: all rows, or only committed ones."""

    def __init__(self, servers: str, topic: str, committed: bool = False) -> None:
        super().__init__(name="output", daemon=True)
        isolation = "read_committed" if committed else "read_uncommitted"
        settings = {"bootstrap.servers": servers, "group.id": "tests", "isolation.level": isolation}
        self._consumer = Consumer(settings | {"enable.auto.commit": False, "log_level": 2})
        self._consumer.assign([Place(topic, 0, 0)])
        self._halted = threading.Event()
        self.rows: list[Got] = []
        self.start()

    def run(self) -> None:
        while not self._halted.is_set():
            for message in self._consumer.consume(1000, 0.05):
                if message.error() is None:
                    self._take(message)

    def _take(self, message: Any) -> None:
        row, headers = json.loads(message.value()), dict(message.headers())
        _, epoch, _ = map(int, headers["penstock-id"].split(b"-"))
        runs = [one.split(b"-") for one in headers["penstock-run"].split(b",")]
        (run, since), *earlier = [(int(run), int(since)) for run, since in runs]
        if row["user"] != "the end":
            values = (row["windows"], row["n"], row["total"])
            self.rows.append(Got(row["user"], values, epoch, run, since, tuple(earlier)))

    def end(self) -> None:
        self._halted.set()
        self.join()
        self._consumer.close()


def counting(rows: Iterable[Got]) -> list[Got]:
    """The rows that count: those whose epoch no later run repeated."""
    rows = list(rows)
    runs = {run: since for row in rows for run, since in ((row.run, row.since), *row.earlier)}
    return [row for row in rows if not any(r > row.run and s <= row.epoch for r, s in runs.items())]


def newest(rows: Iterable[Got]) -> dict[str, tuple[int, int, int]]:
    """User -> its last values."""
    latest: dict[str, tuple[int, int, int]] = {}
    for row in rows:
        latest[row.user] = max(latest.get(row.user, row.values), row.values)
    return latest

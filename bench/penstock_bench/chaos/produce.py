"""The process that sends the rows of a run to Kafka at their arrival times, even if the broker dies.

Run it with `python -m penstock_bench.chaos.produce FOLDER`. Row n goes to partition n modulo the number of
partitions. An idempotent producer that retries forever sends the rows in order, each once.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from penstock.sim.pieces import Numbers
from penstock_bench.chaos.arena import ChaosArena
from penstock_bench.chaos.load import PARTITIONS, TOPIC, ChaosRows, arrivals, group_of
from penstock_bench.live.latency import Began

_LEAD_IN, _LEAD_IN_S = 60, 0.5
"""Rows per batch of the lead-in, and seconds between batches. It lasts until the query is up."""
_UP_EPOCHS = 5
"""Epochs after which a query counts as up."""
_TICK_S = 0.01


def produce(arena: ChaosArena) -> None:
    """Send all rows of the arena's plan. The load begins when the query has done some epochs."""
    from confluent_kafka import Producer

    assert arena.bearings.servers is not None
    producer = Producer(
        {
            "bootstrap.servers": arena.bearings.servers,
            "enable.idempotence": True,
            "message.timeout.ms": 0,
            "linger.ms": 2,
            "reconnect.backoff.max.ms": 250,
            "log_level": 2,
        }
    )
    lead = _LeadIn(producer)
    while not arena.stopped and len(arena.notes("epochs")) < _UP_EPOCHS:
        lead.send(_LEAD_IN)
        time.sleep(_LEAD_IN_S)
    began = Began(int(time.time() * 1000) + 200, lead.sent)
    arena.write_began(began)
    plan = arena.plan
    shape, sent = arrivals(plan), 0
    total = int(shape.cumulative(1000 * plan.seconds))
    while sent < total and not arena.stopped:
        now_ms = time.time() * 1000 - began.start_ms
        due = min(total, int(shape.cumulative(max(0.0, now_ms))))
        if due > sent:
            number = np.arange(sent, due, dtype=np.int64)
            t_us = shape.arrival_us(number)
            send(producer, number + began.first, t_us, began.start_ms + t_us // 1000)
            sent = due
        producer.poll(0)
        time.sleep(_TICK_S)
    while producer.flush(1) and not arena.stopped:
        pass


class _LeadIn:
    """Rows sent before the load, while the query starts."""

    def __init__(self, producer: Any) -> None:
        self._producer, self.sent = producer, 0

    def send(self, count: int) -> None:
        number = np.arange(self.sent, self.sent + count, dtype=np.int64)
        self.sent += count
        now = np.full(count, int(time.time() * 1000))
        send(self._producer, number, np.zeros_like(number), now)
        self._producer.poll(0)


def send(producer: Any, number: Numbers, t_us: Numbers, arrival_ms: Numbers) -> None:
    """Send the rows with these numbers, as the oracle computes them, with these arrival times."""
    at_ms, k, v = ChaosRows().numbers(number, t_us)
    at = np.datetime_as_string(at_ms.astype("datetime64[ms]"), timezone="UTC").tolist()
    columns = (
        number.tolist(),
        arrival_ms.tolist(),
        at,
        group_of(k).tolist(),
        k.tolist(),
        v.tolist(),
    )
    for n, arrival, *fields in zip(*columns, strict=True):
        value = json.dumps(dict(zip(("at", "g", "k", "v"), fields, strict=True)))
        producer.produce(TOPIC, value, partition=n % PARTITIONS, timestamp=arrival)


if __name__ == "__main__":
    produce(ChaosArena(Path(sys.argv[1])))

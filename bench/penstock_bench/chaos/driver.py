"""The driver's side of a run: keeps the query running, and restarts it when it fails.

`python -m penstock_bench.chaos.driver FOLDER` runs a driver in a process of its own, which can be killed.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

import penstock as ps
from penstock.errors import PenstockError
from penstock_bench.chaos import load
from penstock_bench.chaos.arena import ChaosArena

CONF = {
    # Keep all offsets: the oracle reads from them which rows each epoch had.
    "spark.sql.streaming.minBatchesToRetain": "1000000",
    "spark.sql.shuffle.partitions": "2",
}
_MIGRATIONS = ("lazy", "lazy(0)", "all_at_once", "batched(4)", "fluid", "pause")
_POLL_S = 0.02
_AGAIN_S = 0.2
"""Seconds before a failed query is restarted."""


def drive(spark: SparkSession, arena: ChaosArena, over: Callable[[], bool]) -> None:
    """Run the query until `over()`, restarting it whenever it fails. Events are noted in the arena."""
    bearings, pause = arena.bearings, threading.Event()
    rows = load.source(spark, arena.plan, bearings)
    while not over():
        arena.note("starts")
        try:
            query = load.flow(rows).start(
                ps.to("parquet", path=str(arena.sink), merge_epochs=load.MERGE_EPOCHS),
                checkpoint=bearings.checkpoint,
                hosts=load.HOSTS,
                settings=load.settings(arena.book),
            )
        except (PenstockError, OSError) as failed:
            arena.note("ends", message=str(failed)[:500])
            pause.wait(_AGAIN_S)
            continue
        try:
            _attend(query, arena, over)
        finally:
            query.stop()
        if not over():
            arena.note("ends", message=query.status.message[:500])
            pause.wait(_AGAIN_S)


def _attend(query: ps.FlowQuery, arena: ChaosArena, over: Callable[[], bool]) -> None:
    """Note a query's epochs and hosts, and move its slots on command, until it ends."""
    newest, hosts, pause = -1, dict[str, int](), threading.Event()
    while query.is_active and not over():
        for epoch in query.progress:
            if epoch.epoch > newest:
                newest = epoch.epoch
                facts = {
                    "rows": epoch.rows,
                    "runs": epoch.runs,
                    "late": sum(epoch.late_rows.values()),
                }
                helped = epoch.functions.rows - epoch.functions.returned
                moved = len(epoch.migration.handovers)
                arena.note("epochs", epoch=newest, helped=helped, moved=moved, **facts)
        now = query.status.hosts
        if now != hosts:
            hosts = now
            arena.write_hosts(hosts)
        for pick in arena.commands():
            if newest >= 0:
                _change(query, random.Random(pick))
        pause.wait(_POLL_S)


def _change(query: ps.FlowQuery, chance: random.Random) -> None:
    """Scale a step, or move some of its slots to one of its hosts. A refused request is ignored."""
    step = chance.choice(sorted(query.placements()))
    try:
        query.migration = chance.choice(_MIGRATIONS)
        if chance.random() < 0.4:
            query.scale(step, chance.randint(load.HOSTS, load.MOST_HOSTS))
        else:
            hosts = sorted(host for host in query.status.hosts if host.startswith(f"{step}/"))
            slots = chance.sample(range(load.SLOTS), chance.randint(1, load.SLOTS // 2))
            if hosts:
                query.move(step, slots, to=chance.choice(hosts))
    except PenstockError:
        return


def main(folder: str) -> None:
    """Run a driver that ends when the run is over, or when its parent process has ended."""
    arena, parent = ChaosArena(Path(folder)), os.getppid()
    bearings = arena.bearings
    spark = ps.session(
        "penstock-chaos",
        cores=None if bearings.master else load.CORES,
        master=bearings.master,
        kafka=bearings.servers is not None,
        conf=CONF | dict(bearings.conf),
    )
    drive(spark, arena, lambda: arena.stopped or os.getppid() != parent)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])

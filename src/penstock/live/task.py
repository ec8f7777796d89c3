"""What a live courier's Spark task runs: serve, keep the courier known to the driver, end when told to."""

from __future__ import annotations

import gc
import os
import secrets
import sys
import threading

import pyarrow as pa

from penstock.faults import arm
from penstock.host.main import keep_known
from penstock.live.loop import CourierTask
from penstock.live.server import CourierServer
from penstock.logs import take_on
from penstock.offload.backends.worker import BurstWorker
from penstock.wire.addresses import task_listens
from penstock.wire.flight import Endpoint

_SWITCH_S = 0.0005
"""Seconds after which one thread lets another have Python's lock: the threads of streams and sources must not
wait for the one that sends, nor it for them, for Python's usual 5 ms."""


def run_courier(task: CourierTask) -> None:
    """Serve until the driver says stop or is gone. Blocks for the life of the courier."""
    settings = task.settings
    take_on(task.log)
    pa.set_cpu_count(1)
    sys.setswitchinterval(_SWITCH_S)
    arm(settings.faults)
    if task.helped:
        BurstWorker(task.flow).rehearse()
    ended = threading.Event()
    driver = Endpoint(task.driver, task.access)
    listen = task_listens(os.environ, task.driver, task.local, settings)
    server = CourierServer(task, listen, driver, ended.set, on_death=_die)
    gc.freeze()  # what is loaded by now stays, and need not be looked at again and again
    try:
        known = [register(server, task, driver)]
        if not keep_known(driver, settings, known, ended):
            os._exit(0)  # as a host does: Spark itself may be half dead
    finally:
        server.end()
        driver.close()


def register(server: CourierServer, task: CourierTask, driver: Endpoint) -> tuple[str, str]:
    """Make a courier known to the driver, as this incarnation."""
    incarnation = f"{task.name}@{server.location}-{secrets.token_hex(3)}"
    facts = {"host": task.name, "incarnation": incarnation, "location": server.location}
    driver.call("register", task.settings.driver_lost_ms, pid=os.getpid(), **facts)
    return task.name, incarnation


def _die() -> None:
    os._exit(1)

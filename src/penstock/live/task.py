"""The entry point of a live courier's Spark task: serves commands, sends heartbeats, ends on request."""

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
"""Seconds after which a thread gives up Python's lock. With Python's default of 5 ms, the threads of streams
and sources and the one that sends would wait for each other too long."""


def run_courier(task: CourierTask) -> None:
    """Run a courier until the driver sends stop or is lost. Blocks until then."""
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
    gc.freeze()  # modules loaded by now stay: collections need not visit them
    try:
        known = [register(server, task, driver)]
        if not keep_known(driver, settings, known, ended):
            os._exit(0)  # as a host does: Spark itself may be half dead
    finally:
        server.end()
        driver.close()


def register(server: CourierServer, task: CourierTask, driver: Endpoint) -> tuple[str, str]:
    """Register a courier with the driver, as a new incarnation. Returns its name and incarnation."""
    incarnation = f"{task.name}@{server.location}-{secrets.token_hex(3)}"
    facts = {"host": task.name, "incarnation": incarnation, "location": server.location}
    driver.call("register", task.settings.driver_lost_ms, pid=os.getpid(), **facts)
    return task.name, incarnation


def _die() -> None:
    os._exit(1)

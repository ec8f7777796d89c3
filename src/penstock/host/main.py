"""What a host's Spark task runs: bring the host up, keep it known to the driver, end when told to."""

from __future__ import annotations

import os
import secrets
import threading
import time
from dataclasses import dataclass

import pyarrow as pa

from penstock.config import Settings
from penstock.errors import HostLostError, PenstockError
from penstock.faults import arm
from penstock.host.machine import HostMachine
from penstock.host.pace import rate_of
from penstock.host.server import HostServer
from penstock.plan.steps import KeyedStep
from penstock.state.store import Store
from penstock.wire.flight import Endpoint, own_address


@dataclass(frozen=True)
class HostOrder:
    """Everything a host needs to begin. Spark ships it, with the user's code inside the step."""

    host: str
    step: KeyedStep
    store: str
    driver: str
    token: str
    local: bool
    settings: Settings


def run_host(order: HostOrder) -> None:
    """Serve until the driver says stop or is gone. Blocks for the life of the host."""
    pa.set_cpu_count(1)
    arm(order.settings.faults)
    ended = threading.Event()
    address = own_address(order.local)
    operator = order.step.operator()
    server = HostServer(
        HostMachine(operator, memory_limit=_limit(order.settings)),
        Store(order.store),
        step=order.step.id,
        host=order.host,
        address=address,
        token=order.token,
        tag=secrets.token_hex(3),
        timeout_ms=order.settings.rpc_timeout_ms,
        on_stop=ended.set,
        rate=rate_of(order.host, order.settings.host_rates),
    )
    driver = Endpoint(order.driver, order.token)
    try:
        incarnation = f"{order.host}@{address}:{server.port}"
        driver.call(
            "register",
            order.settings.driver_lost_ms,
            host=order.host,
            incarnation=incarnation,
            location=server.location,
            pid=os.getpid(),
        )
        _keep_known(driver, order, incarnation, ended)
    finally:
        server.end()
        operator.shutdown()


def _limit(settings: Settings) -> int | None:
    return None if settings.host_memory_mb is None else settings.host_memory_mb << 20


def _keep_known(
    driver: Endpoint, order: HostOrder, incarnation: str, ended: threading.Event
) -> None:
    """Tell the driver that this host lives, until told to stop or the driver is gone."""
    settings = order.settings
    heard = time.monotonic()
    while not ended.wait(settings.heartbeat_ms / 1000):
        try:
            known = driver.call(
                "heartbeat", settings.driver_lost_ms, host=order.host, incarnation=incarnation
            )
            heard = time.monotonic()
            if not known:
                return
        except HostLostError:
            if (time.monotonic() - heard) * 1000 > settings.driver_lost_ms:
                # The driver is gone. Spark may still wait for this task's result in a JVM that is
                # itself half dead, so leave without asking anybody.
                os._exit(0)
        except PenstockError:
            return

"""A host that does not see the driver's store reports that, and the query ends at once."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.driver.fleet import Fleet
from penstock.driver.registry import Registry
from penstock.errors import SettingError
from penstock.host.main import HostOrder, TaskOrder, run_hosts
from penstock.model import HostId
from penstock.plan.steps import KeyedStep
from penstock.state.store import ownership
from penstock.state.store.store import Place, Store
from penstock.wire.access import Access
from penstock.wire.addresses import LOOPBACK
from tests.trials.cluster import SETTINGS
from tests.trials.ledger import SUMS

ACCESS = Access(secrets.token_hex(8))


class Jobs:
    """Runs hosts as if they were on another machine, with a different folder at the store's path."""

    def __init__(self, registry: Registry, place: Place) -> None:
        self._registry, self._place = registry, place
        self.started: list[threading.Thread] = []

    def start(self, host: str, step: KeyedStep) -> None:
        order = TaskOrder(
            (HostOrder(host, step),),
            SUMS,
            self._place,
            self._registry.location,
            ACCESS,
            True,
            SETTINGS,
        )
        thread = threading.Thread(target=self._run, args=(order,))
        self.started.append(thread)
        thread.start()

    def _run(self, order: TaskOrder) -> None:
        with pytest.raises(SettingError):
            run_hosts(order)

    def running(self, host: str) -> bool:
        return self.started[-1].is_alive()

    def failure(self, host: str) -> str:
        return "its task failed"

    def leaving(self, names: Iterable[str]) -> list[str]:
        return []

    def give_up(self, host: str, pid: int) -> None:
        pass

    def cancel(self, host: str) -> None:
        for thread in self.started:
            thread.join()


def test_a_host_that_sees_another_store_ends_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "_LOOKS_S", (0.01,))
    store = Store(str(tmp_path / "driver"))
    store.claim(0)
    registry = Registry(LOOPBACK, ACCESS)
    jobs = Jobs(registry, replace(store.place, uri=str(tmp_path / "elsewhere")))
    fleet = Fleet(jobs, registry, ACCESS, replace(SETTINGS, host_start_ms=600_000))
    began = time.monotonic()
    try:
        fleet.add(HostId("sums/0"), SUMS.keyed[0])
        where = f"host sums/0 on {socket.gethostname()} finds nothing at .*elsewhere"
        with pytest.raises(SettingError, match=where) as raised:
            fleet.wait_for([HostId("sums/0")], 1)
        assert "a shared folder" in raised.value.hint
        assert registry.host("sums/0") is None
        assert time.monotonic() - began < 30
    finally:
        fleet.stop()
        registry.shutdown()

"""The crew of live couriers: couriers that are given up at the end of a run."""

from __future__ import annotations

import time
from collections.abc import Iterable

from penstock.driver.couriers import CourierCrew
from penstock.driver.registry import HostRecord, Registry
from penstock.settings import Settings
from penstock.wire.access import Access
from penstock.wire.addresses import LOOPBACK
from penstock.wire.flight import TokenServer


class NoJobs:
    """Jobs of couriers that start by themselves."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.going: set[str] = set()

    def start(self, name: str, work: int) -> None:
        pass

    def running(self, name: str) -> bool:
        return True

    def failure(self, name: str) -> str:
        return ""

    def cancel(self, name: str) -> None:
        pass

    def leaving(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self.going]

    def give_up(self, name: str, pid: int) -> None:
        self.ended.append(name)


def test_a_courier_that_is_gone_when_a_run_ends_is_not_in_the_next_one() -> None:
    registry = Registry(LOOPBACK, Access("t"))
    jobs, servers = NoJobs(), [TokenServer(LOOPBACK, Access("t")) for _ in range(2)]
    crew = CourierCrew(jobs, registry, Access("t"), Settings())
    try:
        crew.start(2)
        for name, server in zip(crew.names, servers, strict=True):
            facts = {"host": name, "incarnation": name, "location": server.location, "pid": 1}
            registry.actions["register"](facts)
        servers[0].actions["halt"] = servers[1].actions["halt"] = lambda facts: None
        crew._run = {name: HostRecord(name, name, server.location, 1) for name, server in
                     zip(crew.names, servers, strict=True)}  # fmt: skip
        servers[1].shutdown()
        crew.halt(0)
        assert crew.ready(crew.names) == ["courier/0"]
        crew.revive(crew.names)
        assert jobs.ended == [], "Spark restarts the task of a dead process by itself"
        crew._gone["courier/1"] = (1, time.monotonic() - 3600)
        crew.revive(crew.names)
        assert jobs.ended == ["courier/1"], "Spark has not restarted it for a long time"
    finally:
        servers[0].shutdown()
        crew.stop()
        registry.shutdown()

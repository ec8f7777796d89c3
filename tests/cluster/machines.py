"""A standalone cluster on its own network: driver and master on "head", a worker on each other machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.console.cluster.cluster import Machine, Shape, running_cluster
from penstock_bench.network import Network
from tests.cluster.flow_process import Start
from tests.cluster.flows import FlowProcess

HEAD = "head"
WORKERS = ("one", "two", "three")
_CORES = 4
_MEMORY = "600m"
"""Memory of a worker: enough for one executor of 512 MB."""


class FlowOnMachines(FlowProcess):
    """A flow whose driver is on the machine "head"."""

    def __init__(self, master: str, network: Network, folder: Path) -> None:
        super().__init__(master, folder)
        self._network = network

    def command(self, wanted: Start) -> list[str]:
        return self._network.command(HEAD, super().command(wanted))

    def where(self) -> dict[str, str]:
        """Host -> its machine."""
        return {host: self._of(pid) for host, pid in self.hosts().items()}

    def _of(self, pid: int) -> str:
        space = os.stat(f"/proc/{pid}/ns/net").st_ino
        return next(n for n in WORKERS if self._network.number(n) == space)


@contextmanager
def running_machines() -> Iterator[tuple[str, Network]]:
    """The master's URL, and its network."""
    with Network(HEAD, *WORKERS) as network:
        workers = [
            Machine(network.address(name), tuple(network.command(name, ()))) for name in WORKERS
        ]
        shape = Shape(len(WORKERS), _CORES, _MEMORY, network.address(HEAD))
        with network.entered(HEAD), running_cluster(shape, machines=workers) as cluster:
            yield cluster.master, network

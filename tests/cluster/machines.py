"""A standalone cluster on a network of its own: driver and master on "head", one worker on each other one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from penstock.console.cluster.cluster import environment
from penstock_bench.network import Network
from tests.cluster.flow_process import Start
from tests.cluster.flows import FlowProcess, await_condition

HEAD = "head"
WORKERS = ("one", "two", "three")
_PORT = 7077
_CORES = 4
_MEMORY = "600m"
"""For one executor of 512 MB."""


class Machines:
    """The machines of a cluster, and what runs on them."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder = network, folder
        self.master = f"spark://{network.address(HEAD)}:{_PORT}"

    def start(self) -> None:
        """Start the master and all workers; returns when the workers are registered."""
        (self.folder / "conf").mkdir(parents=True)
        deploy = "org.apache.spark.deploy"
        self._daemon(HEAD, f"{deploy}.master.Master", "--port", str(_PORT))
        await_condition(lambda: "I have been elected leader" in self.log(HEAD))
        for name in WORKERS:
            options = ("--cores", str(_CORES), "--memory", _MEMORY)
            work = ("--work-dir", str(self.folder / "work" / name))
            self._daemon(name, f"{deploy}.worker.Worker", *options, *work, self.master)
        for name in WORKERS:
            await_condition(
                lambda name=name: "Successfully registered" in self.log(name)  # type: ignore[misc]
            )

    def log(self, name: str) -> str:
        """What the daemon of a machine has logged."""
        file = self.folder / f"{name}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def of(self, pid: int) -> str:
        """The machine that a process is on."""
        space = os.stat(f"/proc/{pid}/ns/net").st_ino
        return next(n for n in WORKERS if self.network.number(n) == space)

    def _daemon(self, name: str, kind: str, *arguments: str) -> None:
        address = self.network.address(name)
        command = [str(Path(pyspark.__file__).parent / "bin/spark-class"), kind]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.network.start(
                name,
                [*command, "--host", address, *arguments],
                environment(os.environ, self.folder, address, "of-a-network"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


class FlowOnMachines(FlowProcess):
    """A flow whose driver is on the machine "head"."""

    def __init__(self, machines: Machines, folder: Path) -> None:
        super().__init__(machines.master, folder)
        self._machines = machines

    def command(self, wanted: Start) -> list[str]:
        return self._machines.network.command(HEAD, super().command(wanted))

    def where(self) -> dict[str, str]:
        """Host -> the machine it is on."""
        return {host: self._machines.of(pid) for host, pid in self.hosts().items()}


@contextmanager
def running_machines(folder: Path) -> Iterator[Machines]:
    with Network(HEAD, *WORKERS) as network:
        machines = Machines(network, folder)
        machines.start()
        yield machines

"""A Spark standalone master and workers as processes on this machine, from the pip package.

    with running_cluster(Shape(workers=2)) as cluster:
        spark = ps.session(master=cluster.master)
        cluster.workers[0].executors()[0].kill()

Everything listens on free ports of one address, which is loopback by default. Logs, work folders and the
master's recovery state are in one folder. Executors can import the packages that this process can. Nothing is
left running at the end, even after kills.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyspark

import penstock
from penstock.console.cluster.reaper import MARK, end_all, marked
from penstock.errors import SettingError

_COME_UP_S = 120.0
"""Seconds that a master or worker may take to start."""
_LOOK_S = 0.1
"""Seconds between two checks of an awaited condition."""
_PORTS = range(10_000, 32_000)
"""Ports to choose from: below the ephemeral range, so that no other process gets the master's port while it
is down."""
_LOG_CHARACTERS = 2_000
"""Characters at the end of a log that an error shows."""
_DAEMON_MEMORY = "256m"
_DAEMON_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""JVM options for daemons: they do little work, so start-up time and memory matter more than speed."""
_EXECUTOR = "CoarseGrainedExecutorBackend"
_SETTINGS = """
spark.port.maxRetries 0
spark.master.rest.enabled false
spark.deploy.recoveryMode FILESYSTEM
spark.deploy.recoveryDirectory {folder}/recovery
spark.ui.killEnabled false
spark.decommission.enabled true
"""
"""Settings of the daemons: a port in use is an error, and a restarted master recovers its applications."""


@dataclass(frozen=True)
class Shape:
    """Number and size of a cluster's workers."""

    workers: int = 2
    cores: int = 4
    """Task slots per worker; may exceed the machine's cores."""
    memory: str = "1g"
    """Memory that each worker offers to executors, such as 1g, which is the default size of an executor."""
    address: str = "127.0.0.1"
    """Address that all daemons listen on."""

    def __post_init__(self) -> None:
        for name, number in (("workers", self.workers), ("cores", self.cores)):
            if number < 1:
                raise SettingError(f"{name} is {number}", hint="use 1 or more")


@dataclass(frozen=True)
class Machine:
    """A machine, or a network namespace, that a daemon runs in."""

    address: str
    within: tuple[str, ...] = ()
    """Command prefix that runs a command there; empty for this machine itself."""


@dataclass(frozen=True)
class Worker:
    """A worker's process and its child processes."""

    name: str
    process: psutil.Process
    machine: Machine

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def executors(self) -> list[psutil.Process]:
        """The JVMs of its executors, oldest first."""
        return sorted(
            (process for process in self.children() if _EXECUTOR in _command_line(process)),
            key=lambda process: process.create_time(),
        )

    def stop(self) -> None:
        """Stop it and its child processes (SIGSTOP), like a machine that hangs."""
        self._signal(signal.SIGSTOP, [self.process, *self.children()])

    def go_on(self) -> None:
        """Resume all its stopped processes (SIGCONT)."""
        self._signal(signal.SIGCONT, [*self.children(), self.process])

    def kill(self, executors: bool = True) -> None:
        """Kill it (SIGKILL), with its child processes like a machine that fails, or alone."""
        self._signal(signal.SIGKILL, [self.process, *(self.children() if executors else [])])
        self.process.wait(_COME_UP_S)

    def terminate(self) -> None:
        """Shut it down (SIGTERM); it ends its executors first."""
        self._signal(signal.SIGTERM, [self.process])
        self.process.wait(_COME_UP_S)

    def children(self) -> list[psutil.Process]:
        """All its descendant processes; empty if it has ended."""
        try:
            children: list[psutil.Process] = self.process.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return children

    @staticmethod
    def _signal(number: int, processes: list[psutil.Process]) -> None:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


class Cluster:
    """A cluster started by this process: `start` starts it, `end` ends all of it."""

    def __init__(
        self,
        folder: Path,
        shape: Shape,
        mark: str | None = None,
        machines: Sequence[Machine] = (),
    ) -> None:
        """Prepare a cluster in a folder of its own.

        Workers are spread over `machines`; without any, they run where the master does.
        """
        self.folder, self.shape = folder, shape
        self._head = Machine(shape.address)
        self._machines = tuple(machines) or (self._head,)
        self.mark = mark or uuid.uuid4().hex
        port, self._ui_port = _free_ports(shape.address, 2)
        self.master = f"spark://{shape.address}:{port}"
        """The master's URL, for `ps.session(master=...)`."""
        self.workers: list[Worker] = []
        """All workers ever started, oldest first, including those that have ended."""
        self.master_process: psutil.Process | None = None
        self._settings = folder / "daemons.conf"
        self._port, self._named = port, 0

    def start(self) -> None:
        """Start the master and all workers, and wait until the workers are registered."""
        for name in ("logs", "work", "local", "conf"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._settings.write_text(_SETTINGS.format(folder=self.folder))
        self.start_master()
        for _ in range(self.shape.workers):
            self.start_worker()
        self.await_workers(self.shape.workers)

    def start_master(self) -> None:
        """Start the master and wait until it answers. After a restart it takes some seconds until it has
        recovered its workers and applications."""
        process = self.master_process = self._daemon(
            "master",
            self._head,
            "org.apache.spark.deploy.master.Master",
            *("--host", self.shape.address, "--port", str(self._port)),
            *("--webui-port", str(self._ui_port)),
        )
        self._await(lambda: bool(self.facts()), "the master", "master", process)

    def kill_master(self) -> None:
        """Kill the master (SIGKILL)."""
        assert self.master_process is not None
        self.master_process.kill()
        self.master_process.wait(_COME_UP_S)

    def add_worker(self) -> Worker:
        """Start one more worker, and wait until it is registered."""
        before = self.facts()["aliveworkers"]
        worker = self.start_worker()
        self.await_workers(before + 1, worker)
        return worker

    def await_workers(self, count: int, newest: Worker | None = None) -> None:
        """Wait until at least `count` workers are registered."""
        newest = newest or self.workers[-1]
        self._await(
            lambda: self.facts().get("aliveworkers", 0) >= count,
            f"{count} workers",
            newest.name,
            newest.process,
        )

    def facts(self) -> dict[str, Any]:
        """The master's report about itself, its workers and applications; empty if it does not answer."""
        url = f"http://{_bracketed(self.shape.address)}:{self._ui_port}/json/"
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                url, None, 5
            ) as answer:
                report: dict[str, Any] = json.load(answer)
        except (OSError, ValueError, http.client.HTTPException):
            return {}
        return report

    def daemons(self) -> dict[str, int]:
        """Process ids of the master and the workers, by name."""
        assert self.master_process is not None
        workers = {worker.name: worker.pid for worker in self.workers}
        return {"master": self.master_process.pid} | workers

    def executors(self) -> list[psutil.Process]:
        """The JVMs of all executors, including those of workers that have ended."""
        return [process for process in marked(self.mark) if _EXECUTOR in _command_line(process)]

    def end(self) -> None:
        """End all processes of this cluster. May be called more than once."""
        if left := end_all(self.mark):
            raise SettingError(
                f"processes of the cluster did not end: {', '.join(str(p.pid) for p in left)}",
                hint="end them by hand",
            )

    def start_worker(self) -> Worker:
        """Start a worker, without waiting for it."""
        self._named += 1
        name, shape = f"worker-{self._named}", self.shape
        used = [worker.machine for worker in self.workers if _runs(worker.process)]
        machine = min(self._machines, key=used.count)
        process = self._daemon(
            name,
            machine,
            "org.apache.spark.deploy.worker.Worker",
            *("--host", machine.address, "--webui-port", "0"),
            *("--cores", str(shape.cores), "--memory", shape.memory),
            *("--work-dir", str(self.folder / "work" / name), self.master),
        )
        worker = Worker(name, process, machine)
        self.workers.append(worker)
        return worker

    def _daemon(self, name: str, machine: Machine, kind: str, *arguments: str) -> psutil.Process:
        command = [str(_spark_home() / "bin/spark-class"), kind]
        command += ["--properties-file", str(self._settings), *arguments]
        with self._log(name).open("ab") as log:
            return psutil.Popen(
                [*machine.within, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=environment(os.environ, self.folder, machine.address, self.mark),
                start_new_session=True,  # Ctrl-C on a terminal is for the owner alone
            )

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def _await(
        self, condition: Callable[[], bool], what: str, name: str, process: psutil.Process
    ) -> None:
        """Wait until a condition holds. If the daemon ends or time runs out, fail with the end of its log."""
        until = time.monotonic() + _COME_UP_S
        while not condition():
            if not _runs(process) or time.monotonic() > until:
                end = self._log(name).read_text(errors="replace")[-_LOG_CHARACTERS:]
                raise SettingError(f"{what} did not start: {end}", hint=f"see {self._log(name)}")
            time.sleep(_LOOK_S)


@contextmanager
def running_cluster(
    shape: Shape | None = None, folder: Path | None = None, machines: Sequence[Machine] = ()
) -> Iterator[Cluster]:
    """A cluster that ends with the block, or with this process, even if that is killed.

    Without a folder, it uses a temporary one and removes it. Workers are spread over `machines`, if any.
    """
    place = folder or Path(tempfile.mkdtemp(prefix="penstock-cluster-"))
    cluster = Cluster(place, shape or Shape(), machines=machines)
    reaper = subprocess.Popen(
        [sys.executable, "-m", "penstock.console.cluster.reaper", cluster.mark],
        stdin=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": import_path(os.environ)},
        start_new_session=True,
    )
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()
        reaper.communicate()
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)


def environment(own: Mapping[str, str], folder: Path, address: str, mark: str) -> dict[str, str]:
    """Environment variables of daemons and their executors, without those of another Spark installation.

    >>> env = environment({"SPARK_MASTER_PORT": "1", "HOME": "/h"}, Path("/c"), "127.0.0.1", "m")
    >>> env["HOME"], env["SPARK_LOCAL_DIRS"], "SPARK_MASTER_PORT" in env
    ('/h', '/c/local', False)
    """
    kept = {name: value for name, value in own.items() if not name.startswith("SPARK_")}
    return kept | {
        MARK: mark,
        "SPARK_HOME": str(_spark_home()),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_IP": address,  # web UIs listen here too
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
        "SPARK_DAEMON_JAVA_OPTS": _DAEMON_JAVA,
        "PYSPARK_PYTHON": own.get("PYSPARK_PYTHON", sys.executable),
        "PYTHONPATH": import_path(own),
    }


def import_path(own: Mapping[str, str]) -> str:
    """PYTHONPATH for executors: this process's import folders other than the interpreter's, and its working
    directory, as in local mode."""
    of_interpreter = (sys.prefix, sys.base_prefix)
    folders = [
        *own.get("PYTHONPATH", "").split(os.pathsep),
        os.getcwd(),
        str(Path(penstock.__file__).parents[1]),
        *(folder for folder in sys.path if not folder.startswith(of_interpreter)),
    ]
    unique = dict.fromkeys(str(Path(folder).resolve()) for folder in folders if folder)
    return os.pathsep.join(unique)


def _spark_home() -> Path:
    return Path(pyspark.__file__).parent


def _free_ports(address: str, count: int) -> list[int]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    ports: list[int] = []
    with ExitStack() as held:
        for port in random.sample(_PORTS, len(_PORTS)):
            try:
                held.enter_context(socket.create_server((address, port), family=family))
            except OSError as refused:
                if refused.errno != errno.EADDRINUSE:
                    raise
                continue
            ports.append(port)
            if len(ports) == count:
                return ports
    raise SettingError(f"no ports are free at {address}", hint="use another address")


def _bracketed(address: str) -> str:
    """An address in the form that URLs need.

    >>> _bracketed("::1"), _bracketed("127.0.0.1")
    ('[::1]', '127.0.0.1')
    """
    return f"[{address}]" if ":" in address else address


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _runs(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)

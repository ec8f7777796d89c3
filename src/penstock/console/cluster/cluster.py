"""A master and workers of Spark's standalone mode as processes of this machine, from the pip package.

    with running_cluster(Shape(workers=2)) as cluster:
        spark = ps.session(master=cluster.master)
        cluster.workers[0].executors()[0].kill()

Everything listens on one address, loopback unless told otherwise, on ports that are free; logs, work
folders and what the master remembers of its applications are in one folder. Executors find the packages
that this process finds. Nothing is left running at the end, whatever has become of any of it.
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
"""Seconds that a master or worker may take to come up."""
_LOOK_S = 0.1
"""Seconds between two looks at what is waited for."""
_PORTS = range(10_000, 32_000)
"""Below those that a system gives to whoever takes any: nobody has them before the master does, or while it
is away."""
_LOG_CHARACTERS = 2_000
"""Characters of a log that an error shows."""
_DAEMON_MEMORY = "256m"
_DAEMON_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Daemons do little: let them be up soon, and small."""
_EXECUTOR = "CoarseGrainedExecutorBackend"
_SETTINGS = """
spark.port.maxRetries 0
spark.master.rest.enabled false
spark.deploy.recoveryMode FILESYSTEM
spark.deploy.recoveryDirectory {folder}/recovery
spark.ui.killEnabled false
spark.decommission.enabled true
"""
"""Of the daemons: a port that is taken is an error, and a master that comes again knows its applications."""


@dataclass(frozen=True)
class Shape:
    """What a cluster is made of."""

    workers: int = 2
    cores: int = 4
    """Task slots of each worker; there may be more of them than the machine has cores."""
    memory: str = "1g"
    """What each worker may give to executors, such as 1g. Spark's executors take 1g if not told otherwise."""
    address: str = "127.0.0.1"
    """Where everything listens."""

    def __post_init__(self) -> None:
        for name, number in (("workers", self.workers), ("cores", self.cores)):
            if number < 1:
                raise SettingError(f"a cluster with {name}={number}", hint="use 1 or more")


@dataclass(frozen=True)
class Machine:
    """Where a daemon runs."""

    address: str
    within: tuple[str, ...] = ()
    """The command that runs another one there, if it is not simply started here."""


@dataclass(frozen=True)
class Worker:
    """A worker's process, and what it has started."""

    name: str
    process: psutil.Process
    machine: Machine

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def executors(self) -> list[psutil.Process]:
        """The JVMs of its executors, oldest first."""
        return sorted(
            (one for one in self.children() if _EXECUTOR in _words(one)),
            key=lambda one: one.create_time(),
        )

    def stop(self) -> None:
        """Stop it and all that it has started (SIGSTOP), as a machine that hangs."""
        self._signal(signal.SIGSTOP, [self.process, *self.children()])

    def go_on(self) -> None:
        """Let everything that was stopped go on."""
        self._signal(signal.SIGCONT, [*self.children(), self.process])

    def kill(self, executors: bool = True) -> None:
        """Kill it (-9) with all that it has started, as a machine that fails; or it alone."""
        self._signal(signal.SIGKILL, [self.process, *(self.children() if executors else [])])
        self.process.wait(_COME_UP_S)

    def terminate(self) -> None:
        """End it in good order (SIGTERM): it ends its executors first."""
        self._signal(signal.SIGTERM, [self.process])
        self.process.wait(_COME_UP_S)

    def children(self) -> list[psutil.Process]:
        """All processes that it has started, and these; none if it is gone."""
        try:
            found: list[psutil.Process] = self.process.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return found

    @staticmethod
    def _signal(number: int, processes: list[psutil.Process]) -> None:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


class Cluster:
    """A cluster of this process; `start` brings it up, `end` takes all of it down."""

    def __init__(
        self,
        folder: Path,
        shape: Shape,
        mark: str | None = None,
        machines: Sequence[Machine] = (),
    ) -> None:
        """The folder is its own. Workers are on these machines, by turns; without any, they are where the
        master is."""
        self.folder, self.shape = folder, shape
        self._head = Machine(shape.address)
        self._machines = tuple(machines) or (self._head,)
        self.mark = mark or uuid.uuid4().hex
        port, self._ui_port = _free_ports(shape.address, 2)
        self.master = f"spark://{shape.address}:{port}"
        """The master's URL, for `ps.session(master=...)`."""
        self.workers: list[Worker] = []
        """Those that were started, oldest first, also when they have ended."""
        self.master_process: psutil.Process | None = None
        self._settings = folder / "daemons.conf"
        self._port, self._named = port, 0

    def start(self) -> None:
        """Start the master and all workers; returns when the workers are registered."""
        for name in ("logs", "work", "local", "conf"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._settings.write_text(_SETTINGS.format(folder=self.folder))
        self.start_master()
        for _ in range(self.shape.workers):
            self.start_worker()
        self.await_workers(self.shape.workers)

    def start_master(self) -> None:
        """Start the master, again if it was killed; returns when it answers. It knows its workers and
        applications again some seconds later."""
        process = self.master_process = self._daemon(
            "master",
            self._head,
            "org.apache.spark.deploy.master.Master",
            *("--host", self.shape.address, "--port", str(self._port)),
            *("--webui-port", str(self._ui_port)),
        )
        self._await(lambda: bool(self.facts()), "the master", "master", process)

    def kill_master(self) -> None:
        """Kill the master (-9)."""
        assert self.master_process is not None
        self.master_process.kill()
        self.master_process.wait(_COME_UP_S)

    def add_worker(self) -> Worker:
        """Start one worker more; returns when the master has it."""
        before = self.facts()["aliveworkers"]
        worker = self.start_worker()
        self.await_workers(before + 1, worker)
        return worker

    def await_workers(self, count: int, newest: Worker | None = None) -> None:
        """Wait until so many workers or more are registered."""
        newest = newest or self.workers[-1]
        self._await(
            lambda: self.facts().get("aliveworkers", 0) >= count,
            f"{count} workers",
            newest.name,
            newest.process,
        )

    def facts(self) -> dict[str, Any]:
        """What the master tells of itself, its workers and applications; nothing if it does not answer."""
        url = f"http://{_bracketed(self.shape.address)}:{self._ui_port}/json/"
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                url, None, 5
            ) as answer:
                told: dict[str, Any] = json.load(answer)
        except (OSError, ValueError, http.client.HTTPException):
            return {}
        return told

    def daemons(self) -> dict[str, int]:
        """The processes of the master and the workers, by name."""
        assert self.master_process is not None
        return {"master": self.master_process.pid} | {one.name: one.pid for one in self.workers}

    def executors(self) -> list[psutil.Process]:
        """The JVMs of all executors, also of workers that are gone."""
        return [one for one in marked(self.mark) if _EXECUTOR in _words(one)]

    def end(self) -> None:
        """End everything that belongs to this cluster. May be called again."""
        if left := end_all(self.mark):
            raise SettingError(
                f"processes of the cluster did not end: {', '.join(str(one.pid) for one in left)}",
                hint="end them by hand",
            )

    def start_worker(self) -> Worker:
        """Start a worker; returns at once."""
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
                start_new_session=True,  # Ctrl-C on a terminal is for its owner
            )

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def _await(
        self, come: Callable[[], bool], what: str, name: str, process: psutil.Process
    ) -> None:
        """Wait for something that a daemon brings, and fail with the end of its log if it does not."""
        until = time.monotonic() + _COME_UP_S
        while not come():
            if not _runs(process) or time.monotonic() > until:
                end = self._log(name).read_text(errors="replace")[-_LOG_CHARACTERS:]
                raise SettingError(
                    f"{what} did not come up: {end}", hint=f"look at {self._log(name)}"
                )
            time.sleep(_LOOK_S)


@contextmanager
def running_cluster(
    shape: Shape | None = None, folder: Path | None = None, machines: Sequence[Machine] = ()
) -> Iterator[Cluster]:
    """A cluster that ends with the block, and with this process, however that ends. Without a folder for
    it, a temporary one is used, and removed. Its workers are on these machines, if there are any."""
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
    """What daemons, and the executors that they start, find in their environment. Settings of another
    Spark installation are left out.

    >>> found = environment({"SPARK_MASTER_PORT": "1", "HOME": "/h"}, Path("/c"), "127.0.0.1", "m")
    >>> found["HOME"], found["SPARK_LOCAL_DIRS"], "SPARK_MASTER_PORT" in found
    ('/h', '/c/local', False)
    """
    kept = {name: value for name, value in own.items() if not name.startswith("SPARK_")}
    return kept | {
        MARK: mark,
        "SPARK_HOME": str(_spark_home()),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_IP": address,  # pages listen here too
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
        "SPARK_DAEMON_JAVA_OPTS": _DAEMON_JAVA,
        "PYSPARK_PYTHON": own.get("PYSPARK_PYTHON", sys.executable),
        "PYTHONPATH": import_path(own),
    }


def import_path(own: Mapping[str, str]) -> str:
    """The folders where this process finds packages, beside those of the interpreter; its working
    directory too, as in local mode."""
    of_interpreter = (sys.prefix, sys.base_prefix)
    found = [
        *own.get("PYTHONPATH", "").split(os.pathsep),
        os.getcwd(),
        str(Path(penstock.__file__).parents[1]),
        *(place for place in sys.path if not place.startswith(of_interpreter)),
    ]
    return os.pathsep.join(dict.fromkeys(str(Path(place).resolve()) for place in found if place))


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
    """An address as URLs have it.

    >>> _bracketed("::1"), _bracketed("127.0.0.1")
    ('[::1]', '127.0.0.1')
    """
    return f"[{address}]" if ":" in address else address


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _runs(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)

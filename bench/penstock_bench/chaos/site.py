"""Injects faults into a run: writes and withdraws orders, finds processes and signals them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol

import psutil
from pyspark.sql import SparkSession

from penstock_bench.chaos.arena import MARK, ChaosArena
from penstock_bench.chaos.driver import drive
from penstock_bench.chaos.ground import Ground
from penstock_bench.chaos.kinds import DueFault, Trouble, Whom
from penstock_bench.chaos.orders import FaultOrder

_WAITS_S = 10.0
"""Seconds that an order waits for a process that passes its fault point."""
_LIES_S = 15.0
"""Seconds after which a process that was stopped for good is killed."""
_GRACE_S = 60.0
_SERVICE = "penstock.offload.backends.local.service"


class Driver(Protocol):
    """The driver of a run."""

    @property
    def pid(self) -> int: ...

    def keep_up(self) -> bool:
        """Restart it if it is dead; returns whether it was."""

    def kill(self) -> None: ...

    def end(self) -> None:
        """Wait until it has ended, after the arena is stopped, and clean up all its processes."""


class DriverProcess:
    """A driver in a process of its own. Its output and Spark's go to `driver.log` in the arena."""

    def __init__(self, arena: ChaosArena) -> None:
        self._arena = arena
        self._process = self._started()

    @property
    def pid(self) -> int:
        return self._process.pid

    def keep_up(self) -> bool:
        dead = self._process.poll() is not None
        if dead:
            self._process = self._started()
        return dead

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self._process.kill()
        self._process.wait()
        left = list(self._marked())
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=5)

    def _started(self) -> subprocess.Popen[bytes]:
        root = self._arena.root
        with (root / "driver.log").open("ab") as log:
            # In its own session: Ctrl-C is for the supervisor alone.
            return subprocess.Popen(
                [sys.executable, "-m", "penstock_bench.chaos.driver", str(root)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {MARK: str(root)},
                start_new_session=True,
            )

    def _marked(self) -> Iterator[psutil.Process]:
        """Processes of this run that still exist, including those of killed drivers."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == str(self._arena.root):
                    yield process


class DriverThread:
    """A driver in a thread of this process, on this process's Spark session. It cannot be killed."""

    def __init__(self, spark: SparkSession, arena: ChaosArena) -> None:
        self.pid = os.getpid()
        target = lambda: drive(spark, arena, lambda: arena.stopped)  # noqa: E731
        self._thread = threading.Thread(target=target, name="chaos-driver")
        self._thread.start()

    def keep_up(self) -> bool:
        return False

    def kill(self) -> None:
        raise AssertionError("a driver in this process cannot be killed")

    def end(self) -> None:
        self._thread.join()


class LiveSite:
    """The `kinds.Site` of a running query. Used by one thread."""

    def __init__(self, arena: ChaosArena, driver: Driver, ground: Ground) -> None:
        self._arena, self._driver, self._ground = arena, driver, ground
        self._book = arena.book
        self._later: list[tuple[float, Callable[[], None]]] = []

    def order(self, due: DueFault, point: str, do: str, for_s: float = 0.0) -> None:
        self._book.put(point, FaultOrder(due.number, do, for_s))
        self._after(_WAITS_S + for_s, lambda: self._book.withdraw(point, due.number))

    def signal(
        self, due: DueFault, whom: Whom, how: signal.Signals, then_s: float | None = None
    ) -> None:
        targets = self._processes(whom)
        struck = random.Random(due.pick).choice(targets) if targets else []
        if not [process for process in struck if _signalled(process, how)]:
            return
        self._book.note(due.number, whom=whom, struck=struck[0].pid)
        if how == signal.SIGSTOP:
            clear = signal.SIGKILL if then_s is None else signal.SIGCONT
            self._after(then_s or _LIES_S, lambda: [_signalled(p, clear) for p in struck])
        elif then_s is not None:
            self._after(then_s, lambda: self._ground.revive(whom))

    def trouble(self, due: DueFault, what: Trouble, for_s: float) -> None:
        end = self._ground.trouble(what, random.Random(due.pick))
        self._book.note(due.number, what=what)
        self._after(for_s, end)

    def kill_driver(self, due: DueFault) -> None:
        self._driver.kill()
        self._book.note(due.number)

    def set_clock(self, due: DueFault, ahead_s: float) -> None:
        self._book.set_clock(due.number, ahead_s)

    def move(self, due: DueFault) -> None:
        self._arena.command(due.number, due.pick)

    def tick(self) -> None:
        """Run the delayed actions that are due."""
        now, later = time.monotonic(), self._later
        self._later = [(at, do) for at, do in later if at > now]
        for at, do in later:
            if at <= now:
                do()

    def end(self) -> None:
        """Run all delayed actions now, so that no process stays stopped and no order stays open."""
        for _, do in self._later:
            do()
        self._later.clear()

    def _after(self, seconds: float, do: Callable[[], object]) -> None:
        self._later.append((time.monotonic() + seconds, lambda: (do(), None)[1]))

    def _processes(self, whom: Whom) -> list[list[psutil.Process]]:
        if whom == "host":
            hosts = [_process(pid) for pid in sorted(set(self._arena.hosts.values()))]
            return [[host] for host in hosts if host and _runs(host, ".daemon")]
        if whom == "functions":
            driver = _process(self._driver.pid)
            below = _below(driver) if driver else []
            services = [process for process in below if _runs(process, _SERVICE)]
            return [services] if services else []
        return self._ground.processes(whom)


def _process(pid: int) -> psutil.Process | None:
    with suppress(psutil.Error):
        return psutil.Process(pid)
    return None


def _below(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return process.children(recursive=True)
    return []


def _runs(process: psutil.Process, module: str) -> bool:
    """Whether the process runs this Python module: its pid may have been reused since."""
    with suppress(psutil.Error):
        return any(word.endswith(module) for word in process.cmdline())
    return False


def _signalled(process: psutil.Process, how: signal.Signals) -> bool:
    """Send a signal to a process; returns False if it has ended, even if its pid was reused."""
    try:
        process.send_signal(how)
    except psutil.Error:
        return False
    return True

"""Where faults are done to a run: orders are put and withdrawn, processes found and signalled."""

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
"""Seconds that an order lies in wait for somebody who passes."""
_LIES_S = 15.0
"""Seconds after which a process that was stopped for good is cleared away."""
_GRACE_S = 60.0
_SERVICE = "penstock.offload.backends.local.service"


class Driver(Protocol):
    """The driver of a run."""

    @property
    def pid(self) -> int: ...

    def keep_up(self) -> bool:
        """Start it again if it is dead; returns whether it was."""

    def kill(self) -> None: ...

    def end(self) -> None:
        """Wait until it has ended, once the arena says stop; nothing is left of it."""


class DriverProcess:
    """A driver in a process of its own. What it and Spark print goes to a file in the arena."""

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
            # In a session of its own: Ctrl-C is for the supervisor.
            return subprocess.Popen(
                [sys.executable, "-m", "penstock_bench.chaos.driver", str(root)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {MARK: str(root)},
                start_new_session=True,
            )

    def _marked(self) -> Iterator[psutil.Process]:
        """Processes of this run that are still there: of drivers that were killed, too."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == str(self._arena.root):
                    yield process


class DriverThread:
    """A driver in a thread of this process, on its session. It cannot be killed."""

    def __init__(self, spark: SparkSession, arena: ChaosArena) -> None:
        self.pid = os.getpid()
        target = lambda: drive(spark, arena, lambda: arena.stopped)  # noqa: E731
        self._thread = threading.Thread(target=target, name="chaos-driver")
        self._thread.start()

    def keep_up(self) -> bool:
        return False

    def kill(self) -> None:
        raise AssertionError("a driver in this process is not to be killed")

    def end(self) -> None:
        self._thread.join()


class LiveSite:
    """A running query and its processes. See `kinds.Site`. Used by one thread."""

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
        found = self._processes(whom)
        struck = random.Random(due.pick).choice(found) if found else []
        if not [process for process in struck if _signalled(process, how)]:
            return
        self._book.note(due.number, whom=whom, struck=struck[0].pid)
        if how == signal.SIGSTOP:
            clear = signal.SIGKILL if then_s is None else signal.SIGCONT
            self._after(then_s or _LIES_S, lambda: [_signalled(one, clear) for one in struck])
        elif then_s is not None:
            self._after(then_s, lambda: self._ground.revive(whom))

    def trouble(self, due: DueFault, what: Trouble, for_s: float) -> None:
        over = self._ground.trouble(what, random.Random(due.pick))
        self._book.note(due.number, what=what)
        self._after(for_s, over)

    def kill_driver(self, due: DueFault) -> None:
        self._driver.kill()
        self._book.note(due.number)

    def set_clock(self, due: DueFault, ahead_s: float) -> None:
        self._book.set_clock(due.number, ahead_s)

    def move(self, due: DueFault) -> None:
        self._arena.command(due.number, due.pick)

    def tick(self) -> None:
        """Do what was put off until now."""
        now, later = time.monotonic(), self._later
        self._later = [one for one in later if one[0] > now]
        for at, do in later:
            if at <= now:
                do()

    def end(self) -> None:
        """Do all that was put off: nobody stays stopped, no order lies in wait."""
        for _, do in self._later:
            do()
        self._later.clear()

    def _after(self, seconds: float, do: Callable[[], object]) -> None:
        self._later.append((time.monotonic() + seconds, lambda: (do(), None)[1]))

    def _processes(self, whom: Whom) -> list[list[psutil.Process]]:
        if whom == "host":
            hosts = [_process(pid) for pid in sorted(set(self._arena.hosts.values()))]
            return [[one] for one in hosts if one and _runs(one, ".daemon")]
        if whom == "functions":
            driver = _process(self._driver.pid)
            below = _below(driver) if driver else []
            found = [one for one in below if _runs(one, _SERVICE)]
            return [found] if found else []
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
    """Whether it is a process of that Python module: a number may be another one's by now."""
    with suppress(psutil.Error):
        return any(word.endswith(module) for word in process.cmdline())
    return False


def _signalled(process: psutil.Process, how: signal.Signals) -> bool:
    """Send a signal to a process, if it is still the one that it was."""
    try:
        process.send_signal(how)
    except psutil.Error:
        return False
    return True

"""A side of the bench as a process: started, told to do things, and ended with all its children."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from penstock.errors import PenstockError

_END_S = 30.0


class SideProcess:
    """A side that runs in a folder of its own, with its log in it."""

    def __init__(
        self, module: str, words: list[str], folder: Path, path: tuple[str, ...] = ()
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        here = os.environ.get("PYTHONPATH", "")
        env = os.environ | {"PYTHONPATH": os.pathsep.join([*path, *([here] if here else [])])}
        self._log = (folder / "side.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            env=env,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def status(self) -> dict[str, Any]:
        """What the side last told of itself; empty if it tells nothing."""
        file = self.folder / "status.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def tell(self, command: str) -> None:
        """Have the side do something."""
        (self.folder / "command").write_text(command)

    def must_run(self) -> None:
        if self._process.poll() is not None:
            tail = (self.folder / "side.log").read_text(errors="replace")[-2000:]
            raise PenstockError(f"a side of the bench has ended: {tail}")

    def cpu_s(self) -> float:
        """Processor time of the side and all its children so far."""
        total = 0.0
        for process in [self._process.pid, *self._children()]:
            try:
                times = psutil.Process(process).cpu_times()
                total += times.user + times.system
            except psutil.NoSuchProcess:
                continue
        return total

    def end(self) -> None:
        """End it; what does not end by itself is killed."""
        children = self._children()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._log.close()

    def _children(self) -> list[int]:
        try:
            return [c.pid for c in psutil.Process(self._process.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def await_that(what: str, look: Callable[[], bool], timeout_s: float, side: SideProcess) -> None:
    """Wait until something is so, as long as the side runs."""
    deadline, pause = time.monotonic() + timeout_s, threading.Event()
    while not look():
        side.must_run()
        if time.monotonic() > deadline:
            raise PenstockError(f"it took over {timeout_s:.0f} s until {what}")
        pause.wait(0.1)

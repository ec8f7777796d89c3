"""A side of the bench as a process, which takes commands and is ended with all its children."""

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
        self,
        module: str,
        words: list[str],
        folder: Path,
        path: tuple[str, ...] = (),
        python: str = sys.executable,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        here = os.environ.get("PYTHONPATH", "")
        env = os.environ | {"PYTHONPATH": os.pathsep.join([*path, *([here] if here else [])])}
        self._log = (folder / "side.log").open("wb")
        self._process = subprocess.Popen(
            [python, "-m", module, *words],
            env=env,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def status(self) -> dict[str, Any]:
        """The side's last status report; empty if it reports nothing."""
        file = self.folder / "status.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def tell(self, command: str) -> None:
        """Send a command to the side."""
        (self.folder / "command").write_text(command)

    def must_run(self) -> None:
        if self._process.poll() is not None:
            tail = (self.folder / "side.log").read_text(errors="replace")[-2000:]
            raise PenstockError(f"a side of the bench has ended: {tail}")

    def cpu_s(self) -> float:
        """CPU seconds used so far by the side and all its children."""
        total = 0.0
        for process in [self._process.pid, *self._children()]:
            try:
                times = psutil.Process(process).cpu_times()
                total += times.user + times.system
            except psutil.NoSuchProcess:
                continue
        return total

    def end(self) -> None:
        """End the side; processes that do not end by themselves are killed."""
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


def await_that(
    event: str, condition: Callable[[], bool], timeout_s: float, side: SideProcess
) -> None:
    """Wait for a condition; fails if the side ends before, or after the timeout."""
    deadline, pause = time.monotonic() + timeout_s, threading.Event()
    while not condition():
        side.must_run()
        if time.monotonic() > deadline:
            raise PenstockError(f"more than {timeout_s:.0f} s passed before {event}")
        pause.wait(0.1)

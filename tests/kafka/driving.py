"""Control over flows in their own processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAIT_S = 240.0
"""Seconds that a test waits for a condition: enough for a busy machine."""


class FlowProcess:
    """A flow in its own process. Its stderr goes to a file."""

    module = "tests.kafka.flow_process"

    def __init__(self, *arguments: str, log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def ask(self, expression: str) -> Any:
        """The value of an expression about `query`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{expression}\n")
        self._process.stdin.flush()
        return self._answer()

    def until(self, expression: str) -> None:
        ends = time.monotonic() + WAIT_S
        while not self.ask(expression):
            assert self.ask("query.is_active"), self.ask("repr(query.exception())")
            assert time.monotonic() < ends, f"not {expression}: {self.ask('query.status')}"
            time.sleep(0.02)

    def goes_on(self) -> None:
        """Wait for three further epochs, until all hosts and couriers are up."""
        epoch = self.ask("query.progress[-1].epoch if query.progress else -1")
        self.until(
            f"query.progress and query.progress[-1].epoch >= {epoch} + 3 and query.status.pending_slots"
            " == 0 and len(query.status.hosts) >= 4 and len(query.status.couriers) == 2"
        )

    def pid(self, name: str) -> int:
        pid: int = self.ask(f"(query.status.hosts | query.status.couriers)[{name!r}]")
        return pid

    def kill(self) -> list[int]:
        """Kill the driver; return the process ids of its tasks."""
        tasks = self.ask("[*query.status.hosts.values(), *query.status.couriers.values()]")
        self._process.kill()
        self._process.communicate()
        return list(tasks)

    def died(self) -> None:
        """Wait until a fault has killed the driver."""
        self._process.wait(WAIT_S)
        assert self._process.returncode == -signal.SIGKILL

    def stop(self) -> None:
        state, _ = self._process.communicate(timeout=WAIT_S)
        assert json.loads(state.splitlines()[-1]) == "stopped"
        assert self._process.returncode == 0

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the flow's process has ended"
        return json.loads(line)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def wait(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)

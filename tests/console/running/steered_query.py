"""A driver's service with the control actions, in front of a fake query."""

from __future__ import annotations

import copy
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from penstock.cli import app as cli
from penstock.control.journal.entry import Entry
from penstock.errors import SettingError
from penstock.observe.recording import Recording
from penstock.state.store.store import FORMAT, Store
from penstock.wire.access import Access
from penstock.wire.addresses import LOOPBACK
from penstock.wire.control_key import ControlKey, KeyFile
from penstock.wire.flight import TokenServer

TOKEN = "opensesameopensesame"


def announce(store: Store, location: str, pid: int, token: str = TOKEN, **more: Any) -> None:
    """Write a query's address into the checkpoint, and its control token into the user's file. `more` are
    other fields of its key."""
    run = secrets.token_hex(4)
    key = ControlKey(location, token, "", pid)
    KeyFile("f00d", run, os.environ).keep(replace(key, **more))
    store.write_control({"location": location, "pid": pid, "flow": "f00d", "run": run})


def host(name: str, health: str = "good", **figures: Any) -> dict[str, Any]:
    """A host in the report of a control loop."""
    defaults = {
        "slots": 4,
        "rate": 300.0,
        "service_rate": 1000.0,
        "latency_ms": 80.0,
        "projected_ms": 95.0,
    }
    return {"host": name, "health": health} | defaults | figures


def step(health: str | None, *hosts: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """A step in the report of a control loop."""
    defaults: dict[str, Any] = {
        "share": 1.0,
        "alert_ms": 500.0,
        "margin": 0.2,
        "at_least": 1,
        "at_most": 8,
        "treating": None,
        "hot_keys": [],
    }
    return {"health": health, "hosts": list(hosts)} | defaults | facts


def hot_key(key: str, text: str) -> dict[str, Any]:
    figures = {"slot": 3, "rate": 1200.0, "share_of_host": 1.2, "two_stage": False}
    return {"key": key, "text": text} | figures


def epoch(number: int, mean_ms: float = 240.0, rows: int = 100) -> dict[str, Any]:
    """The progress of one epoch; epochs follow each other every 500 ms."""
    latency = {"mean_ms": mean_ms, "p50_ms": mean_ms * 0.9, "p99_ms": mean_ms * 1.5}
    moved = ("fetched_keys", "fetched_bytes", "fetches", "wait_ms", "partial_slots")
    return {
        "epoch": number,
        "rows": rows,
        "started_ms": 1_750_000_000_000 + 500 * number,
        "sink_ms": 300.0,
        "latency": latency if rows else None,
        "hosts": [],
        "migration": {"handovers": [], "left_behind": 0, "evicted": 0} | dict.fromkeys(moved, 0),
    }


def functions(**facts: Any) -> dict[str, Any]:
    """The functions of a query in the report of a control loop."""
    used = {"invocations": 1200, "seconds": 34.5, "failed": 0, "throttled": 0}
    defaults = {"state": "up", "trouble": "", "at_most": 20, "left_whole": {}, "used": used}
    return defaults | facts


def offload(**facts: Any) -> dict[str, Any]:
    """The load that functions carry of a step, in the report of a control loop."""
    figures = {"functions": 4, "warm": 9, "rate": 2000.0, "redirected": 700.0, "lasts": False}
    return figures | facts


class SteeredQuery:
    """A fake query that answers control requests. It obeys every change, and has no policy."""

    def __init__(self, store: Store, **steps: dict[str, Any]) -> None:
        self.store = store
        self.steps = steps
        self.sla: dict[str, int] = {"latency_ms": 1000, "window_ms": 1000}
        self.policy, self.dry_run, self.controlled = "switch(0.2)", False, True
        self.functions: dict[str, Any] | None = None
        self.money: dict[str, float] | None = None
        self.progress: dict[str, Any] | None = None
        self.journal: list[Entry] = []
        self.orders: list[dict[str, Any]] = []
        self.recording: Recording | None = None
        facts = [{"id": name, "slots": 8, "keys": [], "state": []} for name in steps]
        store.write_flow({"format": FORMAT, "id": "f00d", "steps": facts})
        self.server = TokenServer(LOOPBACK, Access("the run's"), TOKEN)
        self.server.actions |= {
            "control_status": lambda _: self._status(),
            "control_steer": self._steer,
            "control_journal": lambda order: self._newest(order["last"]),
            "control_moments": self._moments,
            "control_move": self.orders.append,
            "control_scale": self.orders.append,
        }
        self.listen()

    def listen(self) -> None:
        """Write the query's address into the checkpoint."""
        announce(self.store, self.server.location, os.getpid())

    def end(self) -> None:
        """Shut down cleanly, as a query does at its end."""
        self.server.shutdown()
        self.store.remove_control()

    def keep(self, *files: list[Entry]) -> None:
        """Write journal entries into the checkpoint, one file per list."""
        for entries in files:
            name = f"{entries[0].time_ms:016.0f}-000000"
            self.store.write_journal(name, entries)

    def _status(self) -> dict[str, Any]:
        newest = None if self.progress is None else self.progress["epoch"]
        hosts = [host["host"] for step in self.steps.values() for host in step["hosts"]]
        status = {
            "state": "running",
            "epoch": newest,
            "hosts": {name: 4711 + at for at, name in enumerate(hosts)},
            "message": "running",
            "migration": "lazy(16)",
            "pending_slots": 0,
            "money": self.money,
        }
        return {
            "status": status,
            "placements": {},
            "progress": self.progress,
            "control": self._control(),
        }

    def _control(self) -> dict[str, Any] | None:
        if not self.controlled:
            return None
        report = {"sla": self.sla, "policy": self.policy, "dry_run": self.dry_run}
        return copy.deepcopy(report | {"steps": self.steps, "functions": self.functions})

    def _steer(self, order: dict[str, Any]) -> dict[str, Any] | None:
        if not self.controlled:
            raise SettingError("autoscaling is off", hint="add .elastic()")
        self.orders.append(dict(order))
        margin = order.get("margin", 0.0)
        if not 0 <= margin < 1:
            raise SettingError(f"margin is {margin:g}", hint="use 0 or more, but less than 1")
        self.sla |= {name: order[name] for name in self.sla if name in order}
        self.policy = order.get("policy", self.policy)
        self.dry_run = order.get("dry_run", self.dry_run)
        for name, facts in self.steps.items():
            if order.get("step", name) == name:
                facts |= {setting: order[setting] for setting in facts if setting in order}
        return self._control()

    def _moments(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self.recording is not None
        newer = self.recording.moments(order["since_ms"])[: order["most"]]
        return {"facts": self.recording.facts, "moments": newer}

    def _newest(self, last: int) -> dict[str, Any]:
        return {"entries": self.journal[-last:]}


Serve = Callable[..., SteeredQuery]
"""A function that starts a query with these steps."""


def run(*arguments: str) -> int:
    """Run `penstock ctl` with these arguments; returns its exit code."""
    with pytest.raises(SystemExit) as leaving:
        cli.main(["ctl", *arguments])
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`penstock ctl` in a process, started as by a terminal."""
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "ctl", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
        start_new_session=True,
    ) as process:
        yield process


def interruptible() -> None:
    """Restore the default handling of SIGINT, which processes in the background may ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupted(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Interrupt a process as a terminal does; returns its exit code and its remaining output."""
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err

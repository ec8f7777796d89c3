"""A running query, reached from another process through its checkpoint. `penstock ctl` is this.

A query says in `control.json` of its checkpoint where its driver listens, and with which token it
is to be asked. What is asked for takes effect at the query's next epoch boundary.
"""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

import psutil

from penstock.errors import HostLostError, SettingError
from penstock.plan.slots import slots_from_text
from penstock.state.inspect import open_checkpoint
from penstock.state.store import Store
from penstock.wire.flight import Endpoint

_LOOK_MS = 10_000
"""For a look at a query: it answers at once, whatever it is doing."""
_ORDER_MS = 180_000
"""For an order: a query that has just been started takes it when its first epoch begins."""


class RunningQuery:
    """The query that runs on a checkpoint. A `SettingError` says why there is none."""

    def __init__(self, checkpoint: str) -> None:
        store, facts = open_checkpoint(checkpoint)
        self._checkpoint = checkpoint
        self._slots: dict[str, int] = {step["id"]: step["slots"] for step in facts["steps"]}
        self._control = _control(checkpoint, store)

    def status(self) -> dict[str, Any]:
        """The query's status, its placements, and the progress of its newest epoch (or None)."""
        found: dict[str, Any] = self._ask("control_status", _LOOK_MS)
        return found

    def move(self, slots: str, to: str, step: str | None = None) -> tuple[str, tuple[int, ...]]:
        """Let slots, given as text such as 0-15,20, live on a host; returns the step and slots."""
        step = self._chosen(step)
        chosen = slots_from_text(slots, self._slots[step])
        if not chosen:
            raise SettingError("no slots to move", hint="name some, such as 0-15,20")
        self._ask("control_move", _ORDER_MS, step=step, slots=list(chosen), to=to)
        return step, chosen

    def scale(self, hosts: int, step: str | None = None) -> str:
        """Let a step have so many hosts; returns the step."""
        step = self._chosen(step)
        self._ask("control_scale", _ORDER_MS, step=step, hosts=hosts)
        return step

    def migrate_by(self, migration: str) -> str:
        """Let state follow its slots this way from now on; returns it as the query names it."""
        found: str = self._ask("control_migration", _LOOK_MS, migration=migration)["migration"]
        return found

    def _chosen(self, step: str | None) -> str:
        if step is None and len(self._slots) == 1:
            return next(iter(self._slots))
        if step not in self._slots:
            what = "the flow has several steps" if step is None else f"there is no step {step!r}"
            raise SettingError(what, hint=f"give --step, one of: {', '.join(self._slots)}")
        return step

    def _ask(self, action: str, timeout_ms: int, **arguments: Any) -> Any:
        endpoint = Endpoint(self._control["location"], self._control["token"])
        try:
            return endpoint.call(action, timeout_ms, **arguments)
        except HostLostError as silent:
            raise SettingError(
                f"the query on {self._checkpoint} (process {self._control['pid']}) does not answer: "
                f"{silent.message}",
                hint="check that it still runs, and that this machine reaches that address; "
                "if it has ended, start the flow again",
            ) from silent
        finally:
            endpoint.close()


def _control(checkpoint: str, store: Store) -> dict[str, Any]:
    try:
        control = store.read_control()
    except PermissionError as refused:
        raise SettingError(
            f"how to reach the query on {checkpoint} is for the user who started it",
            hint="ask as that user: control.json of the checkpoint cannot be read by others",
        ) from refused
    if control is None:
        raise SettingError(
            f"no query runs on {checkpoint}",
            hint="start the flow with this checkpoint; "
            "`penstock state` looks into it without a running query",
        )
    if _is_here(control["location"]) and not psutil.pid_exists(control["pid"]):
        raise SettingError(
            f"the query on {checkpoint} has died: its process {control['pid']} is no more",
            hint="start the flow again with this checkpoint: it continues where it stopped",
        )
    return control


def _is_here(location: str) -> bool:
    """Whether a location is on this machine.

    >>> _is_here("grpc://127.0.0.1:4711"), _is_here("grpc://192.0.2.1:4711")
    (True, False)
    """
    address = urlsplit(location).hostname or ""
    own = {found.address for some in psutil.net_if_addrs().values() for found in some}
    return address == "localhost" or address in own or address == socket.gethostname()

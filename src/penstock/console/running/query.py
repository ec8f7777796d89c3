"""A running query, reached from another process through its checkpoint: the core of `penstock ctl`.

A query writes its driver's address into `control.json` of its checkpoint; `wire.control_key` finds the token
that the driver requires. Requests take effect at the query's next epoch boundary.

The journal is in the checkpoint too, so it can be read after the query has ended.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil
from pyarrow.flight import FlightUnauthenticatedError

from penstock import codec
from penstock.console.checkpoint.checkpoint import open_checkpoint
from penstock.control.elastic import Steering
from penstock.control.journal.entry import Entry
from penstock.errors import HostLostError, SettingError
from penstock.observe.moment import Moment
from penstock.observe.recording import FlowFacts
from penstock.plan.slots import slots_from_text
from penstock.state.store.store import Store
from penstock.wire.addresses import address_of, is_here
from penstock.wire.control_key import access_of, kept_key, key_of
from penstock.wire.flight import Endpoint

_LOOK_MS = 10_000
"""Timeout of a read request, in milliseconds. A query answers these at once, whatever it is doing."""
_ORDER_MS = 180_000
"""Timeout of a move or scale request, in milliseconds. A query that is starting up accepts one when its first
epoch begins."""
_FOLLOW_S = 1.0
"""Seconds between two polls for new journal entries."""
_FOLLOW_LAST = 200
"""Entries requested by each poll: more than a query writes in a second."""


class RunningQuery:
    """The query that runs on a checkpoint. Raises `SettingError` if none does."""

    def __init__(self, checkpoint: str) -> None:
        self._store, facts = open_checkpoint(checkpoint)
        self._checkpoint = checkpoint
        self._slots: dict[str, int] = {step["id"]: step["slots"] for step in facts["steps"]}
        self._control = _control(checkpoint, self._store)

    def status(self) -> dict[str, Any]:
        """The query's status, its slot placements, the progress of its newest epoch (or None), and the report
        of its control loop (or None)."""
        return self._ask("control_status", _LOOK_MS)

    def journal(self, last: int) -> list[Entry]:
        """The newest journal entries since the query was started, oldest first."""
        reply = self._ask("control_journal", _LOOK_MS, last=last)
        return codec.from_plain(reply["entries"], list[Entry])

    def moments(self, since_ms: float, most: int) -> tuple[FlowFacts, list[Moment]]:
        """Facts about the query, and at most so many moments of its recording since a time, oldest first."""
        reply = self._ask("control_moments", _LOOK_MS, since_ms=since_ms, most=most)
        return codec.from_plain(reply["facts"], FlowFacts), codec.from_plain(
            reply["moments"], list[Moment]
        )

    def dashboard(self) -> tuple[str, str] | None:
        """Address and token of the dashboard that the query serves on this machine; None if there is none.

        Both are from the user's own key file: who can write the checkpoint cannot lead the token elsewhere.
        """
        key = kept_key(self._control, os.environ)
        if key is None or key.dashboard is None or key.machine != socket.gethostname():
            return None
        # Another program may have got the port of a query that was killed.
        return (key.dashboard, key.token) if psutil.pid_exists(key.pid) else None

    @property
    def token(self) -> str:
        """The control token. Raises `SettingError` if this user does not have it."""
        return key_of(self._control, os.environ).token

    def has_ended(self) -> bool:
        """Whether the query has shut down cleanly and no other one runs on the checkpoint."""
        return self._store.read_control() is None

    def steer(self, steering: Steering) -> dict[str, Any]:
        """Change the control settings; returns those now in force. A query without autoscaling refuses."""
        changes = steering.to_json()
        for name, value in changes.items():
            if isinstance(value, float) and not math.isfinite(value):  # JSON has no such numbers
                raise SettingError(f"{name} is {value}", hint="use a finite number, such as 0.2")
        return self._ask("control_steer", _LOOK_MS, **changes)

    def move(
        self, slots: str, to: str, step: str | None = None, keys: Sequence[str] = ()
    ) -> tuple[str, tuple[int, ...]]:
        """Move slots, such as "0-15,20", and keys, as texts, to a host; returns the step and the slot
        numbers."""
        step = self._chosen(step)
        chosen = slots_from_text(slots, self._slots[step])
        if not chosen and not keys:
            raise SettingError("no slots to move", hint="name slots, such as 0-15,20, or keys")
        order = {"step": step, "slots": list(chosen), "to": to}
        self._ask("control_move", _ORDER_MS, **order, **({"keys": list(keys)} if keys else {}))
        return step, chosen

    def scale(self, hosts: int, step: str | None = None) -> str:
        """Set a step's number of hosts; returns the step."""
        step = self._chosen(step)
        self._ask("control_scale", _ORDER_MS, step=step, hosts=hosts)
        return step

    def migrate_by(self, migration: str) -> str:
        """Set how state migrates when slots move; returns the migration's name in the query."""
        return str(self._ask("control_migration", _LOOK_MS, migration=migration)["migration"])

    def _chosen(self, step: str | None) -> str:
        if step is None and len(self._slots) == 1:
            return next(iter(self._slots))
        if step not in self._slots:
            fault = "the flow has several steps" if step is None else f"there is no step {step!r}"
            raise SettingError(fault, hint=f"give --step, one of: {', '.join(self._slots)}")
        return step

    def _ask(self, action: str, timeout_ms: int, **arguments: Any) -> dict[str, Any]:
        """The query's reply to a request; empty if the reply carries no data."""
        key = key_of(self._control, os.environ)
        endpoint = Endpoint(key.location, access_of(key))
        try:
            return endpoint.call(action, timeout_ms, **arguments) or {}
        except HostLostError as silent:
            if isinstance(silent.__cause__, FlightUnauthenticatedError):
                raise SettingError(
                    f"the query on {self._checkpoint} refuses this control token",
                    hint="unset PENSTOCK_CONTROL_TOKEN if it belongs to another run, or set it to the "
                    "token that the flow was started with",
                ) from silent
            raise SettingError(
                f"the query on {self._checkpoint} (process {self._control['pid']}) does not answer: "
                f"{silent.message}",
                hint="check that it still runs, and that this machine reaches that address; "
                "if it has ended, start the flow again",
            ) from silent
        finally:
            endpoint.close()


def journal(checkpoint: str, last: int) -> list[Entry]:
    """The newest entries of a checkpoint's journal, oldest first, whether a query runs or not.

    A running query returns the entries since its start; earlier ones are read from the checkpoint.
    """
    recent = _from_query(checkpoint, last)
    if len(recent) >= last:
        return recent
    stored = _from_checkpoint(checkpoint, last)
    earlier = [entry for entry in stored if not recent or entry.time_ms < recent[0].time_ms]
    return [*earlier, *recent][-last:]


def followed(
    checkpoint: str, shown: Sequence[Entry], pause: Callable[[float], object] = time.sleep
) -> Iterator[Entry]:
    """The journal entries after those shown, as they are written.

    Never ends, not even when the query does: it may be started again.
    """
    while True:
        pause(_FOLLOW_S)
        newest = _from_query(checkpoint, _FOLLOW_LAST) or _from_checkpoint(checkpoint, _FOLLOW_LAST)
        for entry in after(shown, newest):
            shown = [entry]
            yield entry


def after(shown: Sequence[Entry], entries: Sequence[Entry]) -> list[Entry]:
    """The entries that come after the last one shown: by position, or by time if that one is not among them.

    >>> a, b, c = (Entry(time, None, "sum", "done", "") for time in (1.0, 2.0, 3.0))
    >>> after([a, b], [b, c]) == [c], after([b], [a, c]) == [c]
    (True, True)
    """
    if not shown:
        return list(entries)
    matches = [at for at, entry in enumerate(entries) if entry == shown[-1]]
    if matches:
        return list(entries[matches[-1] + 1 :])
    return [entry for entry in entries if entry.time_ms > shown[-1].time_ms]


def _from_query(checkpoint: str, last: int) -> list[Entry]:
    try:
        return RunningQuery(checkpoint).journal(last)
    except SettingError:
        return []  # no query runs or answers: the checkpoint has its entries too


def _from_checkpoint(checkpoint: str, last: int) -> list[Entry]:
    store, _ = open_checkpoint(checkpoint)
    return store.journal_entries(Entry, files=last)[-last:]  # each file has one entry or more


def _control(checkpoint: str, store: Store) -> dict[str, Any]:
    try:
        control = store.read_control()
    except PermissionError as refused:
        raise SettingError(
            f"control.json of {checkpoint} cannot be read",
            hint="run this as a user who can read the checkpoint",
        ) from refused
    if control is None:
        raise SettingError(
            f"no query runs on {checkpoint}",
            hint="start the flow with this checkpoint; "
            "`penstock state` reads the checkpoint without a running query",
        )
    if is_here(address_of(control["location"])) and not psutil.pid_exists(control["pid"]):
        raise SettingError(
            f"the query on {checkpoint} has died: its process {control['pid']} no longer runs",
            hint="start the flow again with this checkpoint: it continues where it stopped",
        )
    return control

"""A running query, reached from another process through its checkpoint. `penstock ctl` is this.

A query says in `control.json` of its checkpoint where its driver listens; the token that it asks for is
found as `wire.control_key` says. What is asked for takes effect at the query's next epoch boundary.

Its journal is in the checkpoint too, so that it can be read when the query runs no more.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil

from penstock import codec
from penstock.console.checkpoint.checkpoint import open_checkpoint
from penstock.control.elastic import Steering
from penstock.control.journal.entry import Entry
from penstock.errors import HostLostError, SettingError
from penstock.plan.slots import slots_from_text
from penstock.state.store.store import Store
from penstock.wire.addresses import address_of, is_here
from penstock.wire.control_key import access_of, key_of
from penstock.wire.flight import Endpoint

_LOOK_MS = 10_000
"""Timeout of a look at a query, which answers at once, whatever it is doing."""
_ORDER_MS = 180_000
"""Timeout of an order: a query that has just been started takes it when its first epoch begins."""
_FOLLOW_S = 1.0
"""Seconds between two looks for new entries of a journal."""
_FOLLOW_LAST = 200
"""Entries asked for at such a look: more than come in a second."""


class RunningQuery:
    """The query that runs on a checkpoint. A `SettingError` says why there is none."""

    def __init__(self, checkpoint: str) -> None:
        self._store, facts = open_checkpoint(checkpoint)
        self._checkpoint = checkpoint
        self._slots: dict[str, int] = {step["id"]: step["slots"] for step in facts["steps"]}
        self._control = _control(checkpoint, self._store)

    def status(self) -> dict[str, Any]:
        """The query's status, its placements, the progress of its newest epoch (or None), and what
        control makes of it (or None)."""
        return self._ask("control_status", _LOOK_MS)

    def journal(self, last: int) -> list[Entry]:
        """The newest entries of the journal since the query was started, oldest first."""
        told = self._ask("control_journal", _LOOK_MS, last=last)
        return codec.from_plain(told["entries"], list[Entry])

    def has_ended(self) -> bool:
        """Whether the query that was found has ended as it should, and no other one runs."""
        return self._store.read_control() is None

    def steer(self, steering: Steering) -> dict[str, Any]:
        """Change what control keeps to; returns what is in force then. A query that is not elastic
        refuses."""
        wanted = steering.to_json()
        for name, value in wanted.items():
            if isinstance(value, float) and not math.isfinite(value):  # JSON has no such numbers
                raise SettingError(f"{name}={value}", hint="give a number, such as 0.2")
        return self._ask("control_steer", _LOOK_MS, **wanted)

    def move(self, slots: str, to: str, step: str | None = None) -> tuple[str, tuple[int, ...]]:
        """Let slots, given as text such as 0-15,20, live on a host; returns the step and slots."""
        step = self._chosen(step)
        chosen = slots_from_text(slots, self._slots[step])
        if not chosen:
            raise SettingError("no slots to move", hint="name some, such as 0-15,20")
        self._ask("control_move", _ORDER_MS, step=step, slots=list(chosen), to=to)
        return step, chosen

    def scale(self, hosts: int, step: str | None = None) -> str:
        """Give a step this number of hosts; returns the step."""
        step = self._chosen(step)
        self._ask("control_scale", _ORDER_MS, step=step, hosts=hosts)
        return step

    def migrate_by(self, migration: str) -> str:
        """Let state follow its slots this way from now on; returns it as the query names it."""
        return str(self._ask("control_migration", _LOOK_MS, migration=migration)["migration"])

    def _chosen(self, step: str | None) -> str:
        if step is None and len(self._slots) == 1:
            return next(iter(self._slots))
        if step not in self._slots:
            what = "the flow has several steps" if step is None else f"there is no step {step!r}"
            raise SettingError(what, hint=f"give --step, one of: {', '.join(self._slots)}")
        return step

    def _ask(self, action: str, timeout_ms: int, **arguments: Any) -> dict[str, Any]:
        """What the query answers; nothing where it only obeys."""
        key = key_of(self._control, os.environ)
        endpoint = Endpoint(key.location, access_of(key))
        try:
            return endpoint.call(action, timeout_ms, **arguments) or {}
        except HostLostError as silent:
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

    A running query tells those since it was started; earlier ones are in the checkpoint.
    """
    told = _told(checkpoint, last)
    if len(told) >= last:
        return told
    kept = _kept(checkpoint, last)
    earlier = [entry for entry in kept if not told or entry.time_ms < told[0].time_ms]
    return [*earlier, *told][-last:]


def followed(
    checkpoint: str, shown: Sequence[Entry], pause: Callable[[float], object] = time.sleep
) -> Iterator[Entry]:
    """The entries that come after those shown, as they come. Without end: also when the query has
    ended, since it may be started again."""
    while True:
        pause(_FOLLOW_S)
        newest = _told(checkpoint, _FOLLOW_LAST) or _kept(checkpoint, _FOLLOW_LAST)
        for entry in after(shown, newest):
            shown = [entry]
            yield entry


def after(shown: Sequence[Entry], told: Sequence[Entry]) -> list[Entry]:
    """The entries told that come after the last one shown; by time, if that one is not among them.

    >>> a, b, c = (Entry(time, None, "sum", "done", "") for time in (1.0, 2.0, 3.0))
    >>> after([a, b], [b, c]) == [c], after([b], [a, c]) == [c]
    (True, True)
    """
    if not shown:
        return list(told)
    known = [at for at, entry in enumerate(told) if entry == shown[-1]]
    if known:
        return list(told[known[-1] + 1 :])
    return [entry for entry in told if entry.time_ms > shown[-1].time_ms]


def _told(checkpoint: str, last: int) -> list[Entry]:
    try:
        return RunningQuery(checkpoint).journal(last)
    except SettingError:
        return []  # none runs, or it does not answer: the checkpoint has its entries too


def _kept(checkpoint: str, last: int) -> list[Entry]:
    store, _ = open_checkpoint(checkpoint)
    return store.journal_entries(Entry, files=last)[-last:]  # there is an entry in each, or several


def _control(checkpoint: str, store: Store) -> dict[str, Any]:
    try:
        control = store.read_control()
    except PermissionError as refused:
        raise SettingError(
            f"control.json of {checkpoint} cannot be read",
            hint="ask as a user who can read the checkpoint",
        ) from refused
    if control is None:
        raise SettingError(
            f"no query runs on {checkpoint}",
            hint="start the flow with this checkpoint; "
            "`penstock state` looks into it without a running query",
        )
    if is_here(address_of(control["location"])) and not psutil.pid_exists(control["pid"]):
        raise SettingError(
            f"the query on {checkpoint} has died: its process {control['pid']} is no more",
            hint="start the flow again with this checkpoint: it continues where it stopped",
        )
    return control

"""The driver's Flight service: hosts register and send heartbeats, couriers report."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock import codec
from penstock.errors import (
    ChangedInputError,
    HostLostError,
    MemoryLimitError,
    PenstockError,
    StaleRunError,
    from_wire,
)
from penstock.exchange.aside import Aside, late_tables
from penstock.model import DeadLetter
from penstock.wire import orders
from penstock.wire.flight import TokenServer
from penstock.wire.report import Seen

_GIVES_UP = (HostLostError, ChangedInputError, MemoryLimitError)
"""Errors of one courier for which the jobs of the whole run are cancelled."""


@dataclass(frozen=True)
class HostRecord:
    """A host that has registered. A host that died and came back is another incarnation."""

    host: str
    incarnation: str
    location: str
    pid: int


class Registry(TokenServer):
    """Knows which hosts live, and what the couriers of the running epoch have told.

    `changed` is notified whenever a host registers. `on_host_lost` is called with the epoch and run
    of a courier that says that it has lost a host, or that its run cannot go on for its input.
    """

    def __init__(
        self,
        address: str,
        port: int,
        token: str,
        on_host_lost: Callable[[int, int], None] = lambda epoch, run: None,
    ) -> None:
        super().__init__(address, port, token)
        self.changed = threading.Condition()
        self._hosts: dict[str, HostRecord] = {}
        self._seen: dict[int, Seen] = {}
        self._aside: dict[int, Aside] = {}
        self._run: tuple[int, int] = (-1, 0)
        self._trouble: PenstockError | None = None
        self._refusal: PenstockError | None = None
        self._on_host_lost = on_host_lost
        self._on_report: Callable[[list[Seen]], None] = lambda seen: None
        self.actions = {
            "register": self._register,
            "refuse": self._refuse,
            "heartbeat": self._heartbeat,
            "report": self._report,
            "set_aside": self._set_aside,
            "trouble": self._note_trouble,
        }
        self.takes = {
            "register": orders.Register,
            "refuse": orders.Refuse,
            "heartbeat": orders.Heartbeat,
            "report": orders.Report,
            "set_aside": orders.SetAside,
            "trouble": orders.Trouble,
        }

    def answer(self, actions: Mapping[str, Callable[[dict[str, Any]], Any]]) -> None:
        """Answer these actions, too."""
        self.actions |= actions

    def host(self, host: str) -> HostRecord | None:
        with self.changed:
            return self._hosts.get(host)

    def must_be_served(self) -> None:
        """Raise what a host said that cannot begin, and could not if it were started again."""
        with self.changed:
            if self._refusal is not None:
                raise self._refusal

    def forget(self, record: HostRecord) -> None:
        """Take this incarnation for dead. It is told so at its next heartbeat, if it still lives."""
        with self.changed:
            if self._hosts.get(record.host) == record:
                del self._hosts[record.host]

    def expect(self, epoch: int, run: int, on_report: Callable[[list[Seen]], None]) -> None:
        """From now on, keep the reports of this run and refuse all others.

        `on_report` is called with the reports of the run's couriers so far, whenever one has come.
        """
        with self.changed:
            self._run, self._trouble, self._on_report = (epoch, run), None, on_report
            self._seen, self._aside = {}, {}

    def seen(self) -> list[Seen]:
        """What the couriers of this run saw, by partition."""
        with self.changed:
            return [self._seen[partition] for partition in sorted(self._seen)]

    def dead_letters(self) -> list[DeadLetter]:
        """What the couriers of this run set aside, by partition."""
        with self.changed:
            return [letter for aside in self._asides() for letter in aside.dead]

    def late_rows(self) -> dict[tuple[str, int], pa.Table]:
        """(step, input) -> rows that came behind its watermark in this run."""
        with self.changed:
            return late_tables(self._asides())

    def _asides(self) -> list[Aside]:
        return [self._aside[partition] for partition in sorted(self._aside)]

    def trouble(self) -> PenstockError | None:
        """The last error that a courier of this run ended with; Spark's own account is less clear."""
        with self.changed:
            return self._trouble

    def _register(self, facts: dict[str, Any]) -> None:
        with self.changed:
            self._hosts[facts["host"]] = codec.from_plain(facts, HostRecord)
            self.changed.notify_all()

    def _refuse(self, facts: dict[str, Any]) -> None:
        with self.changed:
            self._refusal = from_wire(facts["error"])
            self.changed.notify_all()

    def _heartbeat(self, facts: dict[str, Any]) -> bool:
        """Answers whether the driver still counts on this incarnation."""
        with self.changed:
            record = self._hosts.get(facts["host"])
            return record is not None and record.incarnation == facts["incarnation"]

    def _is_of_run(self, facts: dict[str, Any]) -> bool:
        return (facts["epoch"], facts["run"]) == self._run

    def _report(self, facts: dict[str, Any]) -> None:
        with self.changed:
            if self._is_of_run(facts):
                self._seen[facts["partition"]] = codec.from_plain(facts["seen"], Seen)
                self._on_report(list(self._seen.values()))

    def _set_aside(self, facts: dict[str, Any]) -> None:
        with self.changed:
            if self._is_of_run(facts):
                self._aside[facts["partition"]] = codec.from_plain(facts["aside"], Aside)

    def _note_trouble(self, facts: dict[str, Any]) -> None:
        with self.changed:
            if not self._is_of_run(facts):
                return
            error = from_wire(facts["error"])
            # Whoever comes to a run that was given up only knows that, not why it was; and when its
            # jobs are cancelled, other couriers' inputs break off.
            given_up = isinstance(self._trouble, _GIVES_UP)
            if self._trouble is None or not (given_up or isinstance(error, StaleRunError)):
                self._trouble = error
        if isinstance(error, _GIVES_UP):
            self._on_host_lost(facts["epoch"], facts["run"])

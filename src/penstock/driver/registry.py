"""The driver's Flight service, where hosts and couriers register, send heartbeats and report."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock import codec
from penstock.driver.complaints import Complaint
from penstock.driver.recovery import Recovery
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
from penstock.wire.access import Access
from penstock.wire.addresses import Listen, address_of
from penstock.wire.flight import COUNTED_ON, TokenServer
from penstock.wire.live import CourierCounts, EpochPassed
from penstock.wire.report import Seen

_log = logging.getLogger("penstock.hosts")

_GIVES_UP = (HostLostError, ChangedInputError, MemoryLimitError)
"""Errors of a courier that end the whole run."""


@dataclass(frozen=True)
class HostRecord:
    """One process of a host, or of a live courier ("courier/0"), that has registered. Each restart makes
    another record."""

    host: str
    incarnation: str
    """Unique name of the process."""
    location: str
    """URI at which it listens."""
    pid: int

    @property
    def place(self) -> str:
        """Address of its machine."""
        return address_of(self.location)

    @property
    def title(self) -> str:
        """Its name in messages: "host sum/1" or "courier/0"."""
        return self.host if self.host.startswith("courier/") else f"host {self.host}"

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of log lines about it."""
        if self.host.startswith("courier/"):
            return {"courier": self.host, "pid": self.pid, "place": self.place}
        step = self.host.rsplit("/", 1)[0]
        return {"step": step, "host": self.host, "pid": self.pid, "place": self.place}


class Registry(TokenServer):
    """Keeps the registered hosts, and the reports of the current run's couriers.

    `changed` is notified whenever a host registers or is lost. `on_host_lost` is called with an epoch and run
    that cannot continue: a courier could not reach a host, its input was cut off, or the driver has given up
    a host.
    """

    def __init__(
        self,
        listen: Listen,
        access: Access,
        on_host_lost: Callable[[int, int], None] = lambda epoch, run: None,
        control: str | None = None,
    ) -> None:
        super().__init__(listen, access, control)
        self.changed = threading.Condition()
        self.recovery = Recovery()
        self._hosts: dict[str, HostRecord] = {}
        self._heard: dict[HostRecord, int] = {}
        self._titles: dict[str, str] = {}
        """Location -> name of the member that listens there, or has listened."""
        self._losses: dict[HostRecord, Future[None]] = {}
        self._complaints: list[Complaint] = []
        self._open: dict[HostRecord, list[int]] = {}
        """Tasks of the run with an open channel, by each host's last heartbeat."""
        self._cpu: dict[HostRecord, float] = {}
        """CPU load of members' processes, by their last heartbeats."""
        self._asked: Counter[int] = Counter()
        """Task of the run -> number of times that it has asked whether it is still needed."""
        self._seen: dict[int, Seen] = {}
        self._aside: dict[int, Aside] = {}
        self._run: tuple[int, int] = (-1, 0)
        self._trouble: PenstockError | None = None
        self._given_up = False
        """Whether the run was given up, see `_GIVES_UP`."""
        self._refusal: PenstockError | None = None
        self._on_host_lost = on_host_lost
        self._on_report: Callable[[list[Seen]], None] = lambda seen: None
        self._on_passed: Callable[[EpochPassed], None] = lambda passed: None
        self._on_counted: Callable[[CourierCounts], None] = lambda counts: None
        self.actions = {
            "register": self._register,
            "refuse": self._refuse,
            "heartbeat": self._heartbeat,
            COUNTED_ON: self._counts_on,
            "report": self._report,
            "set_aside": self._set_aside,
            "trouble": self._note_trouble,
            "passed": self._note_passed,
            "counted": self._note_counted,
            "stream_trouble": self._note_stream_trouble,
        }
        self.takes = {
            "register": orders.Register,
            "refuse": orders.Refuse,
            "heartbeat": orders.Heartbeat,
            COUNTED_ON: orders.CountedOn,
            "report": orders.CourierReport,
            "set_aside": orders.SetAside,
            "trouble": orders.Trouble,
            "passed": orders.CourierPassed,
            "counted": orders.CourierCounted,
            "stream_trouble": orders.StreamTrouble,
        }

    def answer(self, actions: Mapping[str, Callable[[dict[str, Any]], Any]]) -> None:
        """Add actions to the service."""
        self.actions |= actions

    def host(self, host: str) -> HostRecord | None:
        with self.changed:
            return self._hosts.get(host)

    def must_be_served(self) -> None:
        """Raise the error of a host that cannot start, and would not start the next time either."""
        with self.changed:
            if self._refusal is not None:
                raise self._refusal

    def forget(self, record: HostRecord) -> bool:
        """Drop this process. If it is still alive, it learns that from its next heartbeat.

        Returns whether it was registered until now.
        """
        with self.changed:
            if self._hosts.get(record.host) != record:
                return False
            self._drop(record)
            self.changed.notify_all()
            return True

    def _drop(self, record: HostRecord) -> None:
        del self._hosts[record.host], self._heard[record]
        self._open.pop(record, None)
        self._cpu.pop(record, None)
        self._losses.pop(record).set_result(None)

    def cpu(self, host: str) -> float | None:
        """CPU load of a host's process; None if it is not measured."""
        with self.changed:
            record = self._hosts.get(host)
            return None if record is None else self._cpu.get(record)

    def heard(self) -> dict[HostRecord, int]:
        """Registered member -> number of heartbeats that it has sent."""
        with self.changed:
            return dict(self._heard)

    def couriers(self) -> dict[tuple[int, int, int], int]:
        """(epoch, run, task) of couriers that hosts wait for -> number of their requests."""
        with self.changed:
            if self._given_up:
                return {}
            tasks = {task for tasks in self._open.values() for task in tasks}
            return {(*self._run, task): self._asked[task] for task in tasks}

    def loss(self, record: HostRecord) -> Future[None]:
        """A future that is done once this process is dropped."""
        with self.changed:
            loss = self._losses.get(record)
        if loss is None:
            loss = Future()
            loss.set_result(None)
        return loss

    def break_off(self, why: PenstockError) -> None:
        """End the current run, since a host or a courier that it needs was given up."""
        with self.changed:
            epoch, run = self._run
            self._trouble, self._given_up = self._trouble or why, True
        self._on_host_lost(epoch, run)

    def expect(
        self,
        epoch: int,
        run: int,
        on_report: Callable[[list[Seen]], None] = lambda seen: None,
        on_passed: Callable[[EpochPassed], None] = lambda passed: None,
        on_counted: Callable[[CourierCounts], None] = lambda counts: None,
    ) -> None:
        """Collect the reports of this run from now on, and ignore those of other runs.

        `on_report` is called after each report, with all reports of the run so far. In a live run,
        `on_passed` is called when an epoch has passed a courier, and `on_counted` with a courier's counts.
        """
        with self.changed:
            self._run, self._trouble = (epoch, run), None
            self._on_report, self._on_passed = on_report, on_passed
            self._on_counted = on_counted
            self._seen, self._aside, self._complaints = {}, {}, []
            self._open, self._asked = {}, Counter()
            self._given_up = False

    def seen(self) -> list[Seen]:
        """Reports of this run's couriers, by partition."""
        with self.changed:
            return [self._seen[partition] for partition in sorted(self._seen)]

    def dead_letters(self) -> list[DeadLetter]:
        """Dead letters of this run's couriers, by partition."""
        with self.changed:
            return [letter for aside in self._asides() for letter in aside.dead]

    def late_rows(self) -> dict[tuple[str, int], pa.Table]:
        """(step, input) -> rows of this run that came behind its watermark."""
        with self.changed:
            return late_tables(self._asides())

    def _asides(self) -> list[Aside]:
        return [self._aside[partition] for partition in sorted(self._aside)]

    def trouble(self) -> PenstockError | None:
        """Last error of a courier of this run, which is clearer than Spark's; None if there is none."""
        with self.changed:
            return self._trouble

    def complaints(self) -> list[Complaint]:
        """Complaints of this run's couriers about registered hosts."""
        with self.changed:
            return list(self._complaints)

    def _refuse(self, facts: dict[str, Any]) -> None:
        with self.changed:
            self._refusal = from_wire(facts["error"])
            self.changed.notify_all()

    def _register(self, facts: dict[str, Any]) -> None:
        record = codec.from_plain(facts, HostRecord)
        with self.changed:
            before = self._hosts.get(record.host)
            if before is not None:
                self._drop(before)
            self._hosts[record.host] = record
            self._titles[record.location] = record.title
            self._heard[record], self._losses[record] = 0, Future()
            self.changed.notify_all()
        if before is not None:
            _log.warning(
                "%s (process %d) is lost: its process has died. Spark has started it again, as process %d.",
                capitalized(before.title),
                before.pid,
                record.pid,
                extra=before.fields | {"reason": "its process has died", "new_pid": record.pid},
            )
            self.recovery.lost(record.title)
        self.recovery.back(record.title)

    def _heartbeat(self, facts: dict[str, Any]) -> bool:
        """Reply whether this process is still registered."""
        with self.changed:
            record = self._hosts.get(facts["host"])
            if record is None or record.incarnation != facts["incarnation"]:
                return False
            self._heard[record] += 1
            if "cpu" in facts:
                self._cpu[record] = facts["cpu"]
            waiting_for = facts.get("open", ())
            self._open[record] = [task for *run, task in waiting_for if tuple(run) == self._run]
            return True

    def _counts_on(self, facts: dict[str, Any]) -> bool:
        """Reply whether hosts at these locations are registered and the run goes on."""
        with self.changed:
            known = {record.location for record in self._hosts.values()}
            if "task" in facts and self._is_of_run(facts):
                self._asked[facts["task"]] += 1
            on = "run" not in facts or (self._is_of_run(facts) and not self._given_up)
            return on and known.issuperset(facts["locations"])

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
            error = self._noted(facts["error"])
        if isinstance(error, _GIVES_UP):
            self._on_host_lost(facts["epoch"], facts["run"])

    def _noted(self, text: str) -> PenstockError:
        """Keep the error of a courier of the run, and its complaints about hosts."""
        error = from_wire(text)
        if isinstance(error, HostLostError):
            named = error.location.split()
            for location in named:
                title = self._titles.get(location, location)
                error.message = error.message.replace(location, title)
            error = HostLostError(error.message, hint=error.hint, location=error.location)
            self._complaints += [
                Complaint(record.host, record.place, record.incarnation, *self._run)
                for record in self._hosts.values()
                if record.location in named
            ]
        self._given_up = self._given_up or isinstance(error, _GIVES_UP)
        # The first error is the cause. Later couriers only know that the run was given up, or that their
        # input was cut off when its jobs were cancelled.
        given_up = isinstance(self._trouble, _GIVES_UP)
        if self._trouble is None or not (given_up or isinstance(error, StaleRunError)):
            self._trouble = error
        return error

    def _note_passed(self, facts: dict[str, Any]) -> None:
        passed = codec.from_plain(facts, EpochPassed)
        with self.changed:
            if passed.run == self._run[1]:
                self._on_passed(passed)

    def _note_counted(self, facts: dict[str, Any]) -> None:
        counts = codec.from_plain(facts, CourierCounts)
        with self.changed:
            if counts.run == self._run[1]:
                self._on_counted(counts)

    def _note_stream_trouble(self, facts: dict[str, Any]) -> None:
        """Take in the error of a live courier, which ends the run."""
        with self.changed:
            if facts["run"] != self._run[1]:
                return
            self._noted(facts["error"])
            self._given_up = True
            run = self._run
        self._on_host_lost(*run)


def capitalized(title: str) -> str:
    """A member's title at the start of a sentence.

    >>> capitalized("host sum/1"), capitalized("courier/0")
    ('Host sum/1', 'courier/0')
    """
    return title if title.startswith("courier/") else title[:1].upper() + title[1:]

"""A started flow, as users see it. Its own thread starts hosts, runs epochs to the end, and leaves
nothing behind."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import socket
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.util import InheritableThread

from penstock.control.elastic import Steering
from penstock.control.journal.entry import Entry
from penstock.control.money import Money
from penstock.driver.control_loop import ControlLoop
from penstock.driver.progress import EpochProgress
from penstock.errors import PenstockError, SettingError
from penstock.faults import arm
from penstock.plan.migration import Migration
from penstock.spark import control
from penstock.spark.lasting_jobs import reason
from penstock.spark.parts import FlowParts, QueryParts
from penstock.spark.session import check_cores
from penstock.wire.control_key import ControlKey

State = Literal["starting", "running", "stopped", "finished", "failed"]

_log = logging.getLogger("penstock.query")
_JOURNAL_KEPT = 1_000
_END_S = 60.0
"""Seconds that one part may take to end: a host that does not answer must not keep the others."""
_active: weakref.WeakSet[FlowQuery] = weakref.WeakSet()


def _stop_all() -> None:
    for query in list(_active):
        query._parts.stopping.set()
    for query in list(_active):
        query.stop()


# When `atexit` calls, thread pools take no more work, and a query needs them to end in good order.
getattr(threading, "_register_atexit", atexit.register)(_stop_all)


@dataclass(frozen=True)
class QueryStatus:
    """A glance at a query."""

    state: State
    epoch: int | None
    """The newest epoch that is done."""
    hosts: dict[str, int]
    """host -> process id, of those that are up."""
    message: str
    migration: str = "lazy"
    """How state follows its slots."""
    pending_slots: int = 0
    """Slots that have not reached the host where they should be."""
    money: Money | None = None
    """Spent since it was started."""
    couriers: dict[str, int] = field(default_factory=dict)
    """courier -> process id, of those of a live flow that are up."""


class FlowQuery:
    """A running flow. Like Spark's `StreamingQuery`, with hosts.

    Made by `Flow.start`. Safe to use from any thread.
    """

    def __init__(self, parts: QueryParts) -> None:
        self._start, self._parts = parts.start, parts
        self._relocation, self._control = parts.relocation, parts.control
        self._state: State = "starting"
        self._error: BaseException | None = None
        self._done = threading.Event()
        self.run_id = parts.run_id
        name = f"penstock-{parts.run_id}"
        self._driver = InheritableThread(target=self._drive, name=name, daemon=True)
        parts.registry.answer(control.actions(self))

    def launch(self) -> FlowQuery:
        """Begin, in a thread of the query's own."""
        _active.add(self)
        self._driver.start()
        return self

    @property
    def status(self) -> QueryStatus:
        """A glance: state, newest epoch, hosts."""
        parts = self._parts
        message = str(self._error) if self._error else self._state
        for told in parts.waiting:
            message += f"; {told}" if told and not self._done.is_set() else ""
        if trouble := parts.runner.upkeep_trouble:
            message += f"; {trouble}"
        if trouble := parts.store.files.trouble:
            message += f"; waiting for the store: {trouble}"
        if parts.keeper is not None and (trouble := parts.keeper.trouble):
            message += f"; there are no functions: {trouble}"
        return QueryStatus(
            state=self._state,
            epoch=parts.progress[-1].epoch if parts.progress else None,
            hosts=parts.fleet.pids(),
            message=message,
            migration=str(self.migration),
            pending_slots=self._relocation.pending,
            money=self.money,
            couriers=parts.couriers,
        )

    @property
    def progress(self) -> list[EpochProgress]:
        """The newest epochs, oldest first."""
        return list(self._parts.progress)

    @property
    def money(self) -> Money:
        """What hosts and burst workers have cost since the query was started."""
        return self._parts.bill.money

    @property
    def is_active(self) -> bool:
        return not self._done.is_set()

    def exception(self) -> BaseException | None:
        """Why the query failed, if it did."""
        return self._error

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the query ends, at most `timeout` seconds; raise what it failed with.

        Returns whether it has ended.
        """
        ended = self._done.wait(timeout)
        if ended and self._error is not None:
            raise self._error
        return ended

    def stop(self) -> None:
        """End the query after the epoch under way, and every host with it. Returns when it is done."""
        self._parts.stopping.set()
        if threading.current_thread() is not self._driver:
            self._done.wait()

    def spark_query(self) -> StreamingQuery:
        """Spark's own query behind this one; waits until it is started. A live flow has none."""
        if not isinstance(self._parts, FlowParts):
            raise PenstockError("a live flow has no Spark query behind it")
        epochs = self._parts.epochs
        while not epochs.launched.wait(0.1):
            if self._done.is_set():
                raise self._error or PenstockError("this query has no Spark query behind it")
        assert epochs.streaming is not None
        return epochs.streaming

    def move(self, step: str, slots: Iterable[int], to: str) -> None:
        """Let these slots of a step live on the host `to`, from the next epoch on.

        State follows as `migration` says. Hosts are named like "sum/0", as in `status.hosts`.
        """
        self._must_run(moving=True)
        self._relocation.move(step, slots, to)

    def scale(self, step: str, hosts: int) -> None:
        """Give a step this number of hosts. Returns at once: slots move when new hosts are up."""
        self._must_run(moving=True)
        more = hosts - len(self._relocation.hosts(step)) if step in self._start.hosts else 0
        if more > 0:
            parts = self._parts
            check_cores(self._start.spark, parts.hosts_wanted + more, len(parts.couriers) or 1)
        self._relocation.scale(step, hosts)

    @property
    def migration(self) -> Migration:
        """How state follows slots that change hands. Set it to a text such as "batched(8)"."""
        return self._relocation.migration

    @migration.setter
    def migration(self, migration: str | Migration) -> None:
        self._must_run(moving=True)
        self._relocation.migration = Migration.parse(migration)

    def placements(self) -> dict[str, list[dict[str, Any]]]:
        """Per step: which slots are on which host, since which epoch, and why."""
        return self._relocation.placements()

    def host_memory(self) -> dict[str, int]:
        """Resident bytes of each host's process."""
        return self._parts.fleet.memory()

    @property
    def control(self) -> ControlLoop:
        """What keeps the SLA: its settings, its journal, and `steer` to change them."""
        if self._control is None:
            raise SettingError(
                "autoscaling is off for this query: its hosts stay as they are",
                hint='start it with flow.sla(latency="1s").elastic()',
            )
        return self._control

    @property
    def is_elastic(self) -> bool:
        """Whether hosts follow the load."""
        return self._control is not None

    def steer(self, steering: Steering | None = None, **changes: Any) -> dict[str, Any]:
        """Change the SLA, the policy or its limits from the next decision on; tells what holds then.

        The changes are those of `Steering`, by name: `query.steer(latency="2s", at_most=12)`.
        """
        self._must_run()
        wanted = steering or Steering.of(**changes)
        if wanted.at_most is not None:
            hosts = sum(min(step.slots, wanted.at_most) for step in self._start.flow.keyed)
            check_cores(self._start.spark, hosts)
        told = self.control.steer(wanted)
        bound = self._parts.start.bound if isinstance(self._parts, FlowParts) else None
        if bound is not None and self.control.machine.sla is not None:
            bound.latency_ms = self.control.machine.sla.latency_ms
        return told

    @property
    def journal(self) -> list[Entry]:
        """What was decided, why, and what came of it; oldest first."""
        return [] if self._control is None else self._control.journal.last(_JOURNAL_KEPT)

    def _must_run(self, moving: bool = False) -> None:
        if self._done.is_set():
            raise SettingError("this query has ended", hint="start the flow again")
        if moving and self._start.flow.one_host:
            raise SettingError(
                "this flow runs on one host: its slots cannot move",
                hint="start it without on_one_host() to scale it or to move slots",
            )

    # -- the query's own thread

    def _drive(self) -> None:
        parts = self._parts
        try:
            self._start_up()
            self._state = "running"
            self._log(logging.INFO, f"is running with {self._extent()}", hosts=self._start.hosts)
            self._state = parts.drive()
        except BaseException as failed:
            self._error = parts.error or failed
        finally:
            self._error = self._error or parts.error
            if self._error is not None:
                self._state = "failed"
            try:
                self._clean_up()
            finally:
                if self._error is not None:
                    self._log_failure(self._error)
                else:
                    self._log(logging.INFO, f"has {self._state}")
                self._done.set()
                _active.discard(self)

    def _log(self, level: int, what: str, **fields: Any) -> None:
        """Log what has become of the query."""
        name = self._start.name or self._start.flow_id
        fields |= {"query": name, "run_id": self.run_id, "checkpoint": self._parts.store.uri}
        _log.log(level, "Query %s (run %s) %s.", name, self.run_id, what, extra=fields)

    def _log_failure(self, error: BaseException) -> None:
        """Log what the query has failed with; of an error that is not Penstock's own also where it was."""
        if isinstance(error, PenstockError):
            self._log(logging.ERROR, f"has failed: {error}", reason=str(error))
            return
        name = self._start.name or self._start.flow_id
        text, fields = reason(str(error)), {"query": name, "run_id": self.run_id}
        _log.error("Query %s has failed: %s", name, text, extra=fields, exc_info=error)

    def _extent(self) -> str:
        """What the query runs with, for its first log line."""
        hosts = self._start.hosts
        counts = [f"{count} host{'s' * (count != 1)} of {step}" for step, count in hosts.items()]
        return f"{', '.join(counts) or 'no hosts'} and checkpoint {self._parts.store.uri}"

    def _start_up(self) -> None:
        parts = self._parts
        arm(parts.start.settings.faults)
        parts.start_up()
        location, pid = parts.registry.location, os.getpid()
        key = ControlKey(
            location, parts.control_token, socket.gethostname(), pid, self._start.settings.tls
        )
        parts.key_file.keep(key)
        whose = {"flow": self._start.flow_id, "run": self.run_id}
        parts.store.write_control({"location": location, "pid": pid} | whose)

    def _clean_up(self) -> None:
        """End all parts, one after the other, and also those behind one that fails or hangs."""
        parts = self._parts
        for end in parts.ends():
            if failed := _failure(end, _END_S):
                self._log(logging.WARNING, f"did not end cleanly: {failed}", reason=str(failed))
                if self._error is None:
                    self._error, self._state = failed, "failed"
        arm(())
        if parts.start.temporary:
            shutil.rmtree(parts.start.temporary, ignore_errors=True)


def _failure(end: Callable[[], object], limit_s: float) -> BaseException | None:
    """What a function failed with, be it that it takes longer than this; None if it did not."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            end()
        except BaseException as error:
            failed.append(error)

    worker = threading.Thread(target=work, name="penstock-end", daemon=True)
    worker.start()
    worker.join(limit_s)
    if worker.is_alive():
        name = getattr(end, "__qualname__", repr(end))
        return PenstockError(f"{name} has not returned for {limit_s:g} s, and is left to itself")
    return failed[0] if failed else None

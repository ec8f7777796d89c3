"""A started flow, as users see it. Its thread starts hosts, runs epochs to the end, and cleans up."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import socket
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.util import InheritableThread

from penstock.control.elastic import Steering
from penstock.control.examine.success import Success
from penstock.control.journal.entry import Entry
from penstock.control.money import Money
from penstock.driver.control_loop import ControlLoop
from penstock.driver.progress import EpochProgress
from penstock.errors import PenstockError, SettingError
from penstock.faults import arm
from penstock.observe.dashboard.server import DashboardServer
from penstock.observe.recorder import Recorder
from penstock.observe.recording import Recording
from penstock.observe.report.html import write_report
from penstock.observe.report.plots import save_plots
from penstock.observe.trace import Trace
from penstock.plan.migration import Migration
from penstock.spark import control
from penstock.spark.lasting_jobs import reason
from penstock.spark.observed import backlog_of, facts_of, look_at
from penstock.spark.parts import FlowParts, QueryParts
from penstock.spark.session import check_cores
from penstock.spark.triggers import PhaseBook
from penstock.wire.control_key import ControlKey

State = Literal["starting", "running", "stopped", "finished", "failed"]

_log = logging.getLogger("penstock.query")
_JOURNAL_KEPT = 1_000
"""Most journal entries that `FlowQuery.journal` returns."""
_END_S = 60.0
"""Seconds that one part has to end, before the next one is ended."""
_active: weakref.WeakSet[FlowQuery] = weakref.WeakSet()


def _stop_all() -> None:
    for query in list(_active):
        query._parts.stopping.set()
    for query in list(_active):
        query.stop()


# `atexit` would be too late: thread pools take no more work by then, and a query needs them to stop.
getattr(threading, "_register_atexit", atexit.register)(_stop_all)


@dataclass(frozen=True)
class QueryStatus:
    """The status of a query."""

    state: State
    epoch: int | None
    """Number of the newest finished epoch; None before the first."""
    hosts: dict[str, int]
    """Host -> process id, for hosts that are up."""
    message: str
    """The state or error in words, and what the query waits for."""
    migration: str = "lazy"
    """How state moves with its slots."""
    pending_slots: int = 0
    """Number of slots that have not reached the host where they should be."""
    money: Money | None = None
    """Cost since the start."""
    couriers: dict[str, int] = field(default_factory=dict)
    """Courier -> process id, for couriers of a live flow that are up."""
    success: Mapping[str, Success] = field(default_factory=dict)
    """Kind of the SLA's bounds, such as "average", "p99" or "clicks: p99" -> share of its windows that were
    kept. Those of a step are means over its slots."""


class FlowQuery:
    """A running flow. It resembles Spark's `StreamingQuery`.

    `Flow.start` creates it. Safe to use from any thread.
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
        facts = facts_of(parts)
        self._recorder = Recorder(
            facts,
            lambda: look_at(self, parts),
            lambda: list(parts.progress),
            lambda: self.journal,
            parts.moments,
            lambda: _judged(parts),
        )
        micro = parts if isinstance(parts, FlowParts) else None
        self._phases = PhaseBook(lambda: [] if micro is None else micro.epochs.triggers())
        self._dashboard = self._served(parts)
        for watcher in parts.watchers(facts, self._recorder.entries):
            self._recorder.watch(watcher)
        parts.registry.answer(control.actions(self))

    def _served(self, parts: QueryParts) -> DashboardServer | None:
        """The dashboard with the metrics, which is served from now on; None if there shall be none."""
        if parts.start.dashboard is None:
            return None
        from penstock.observe.metrics.prometheus import PrometheusMetrics

        recorder = self._recorder
        metrics = PrometheusMetrics(recorder.facts, recorder.entries)
        recorder.watch(metrics.take)
        listens, token = parts.start.dashboard, parts.control_token
        return DashboardServer(listens, recorder, self, token, metrics.app())

    def launch(self) -> FlowQuery:
        """Start the query's thread."""
        _active.add(self)
        self._driver.start()
        if self.dashboard_url is not None:
            self._log(logging.INFO, f"has its dashboard at {self.dashboard_url}")
        return self

    @property
    def status(self) -> QueryStatus:
        """State, newest epoch, hosts, and what the query waits for."""
        parts = self._parts
        message = str(self._error) if self._error else self._state
        for wait in parts.waiting:
            message += f"; {wait}" if wait and not self._done.is_set() else ""
        if trouble := parts.runner.upkeep_trouble:
            message += f"; {trouble}"
        if trouble := parts.store.files.trouble:
            message += f"; waiting for the store: {trouble}"
        if parts.keeper is not None and (trouble := parts.keeper.trouble):
            message += f"; functions are not available: {trouble}"
        return QueryStatus(
            state=self._state,
            epoch=parts.progress[-1].epoch if parts.progress else None,
            hosts=parts.fleet.pids(),
            message=message,
            migration=str(self.migration),
            pending_slots=self._relocation.pending,
            money=self.money,
            couriers=parts.couriers,
            success=parts.rates,
        )

    def slot_success(self) -> dict[str, list[Success]]:
        """Step and kind of bound, such as "clicks: p99" -> share of windows in which each slot of the step
        kept it. Empty without an SLA."""
        meters = self._parts.meters
        return {} if meters is None else meters.slot_success()

    @property
    def progress(self) -> list[EpochProgress]:
        """The newest epochs, oldest first. Those whose next trigger has ended too have `phases`: where the
        time of the trigger went."""
        return self._phases.filled(list(self._parts.progress))

    def trace(self) -> Trace:
        """What each process did in the newest triggers, and where their time went. A live flow has none."""
        if not isinstance(self._parts, FlowParts):
            raise PenstockError("a live flow has no triggers", hint="use query.progress")
        return Trace.of(list(self._parts.progress), self._parts.epochs.traced())

    @property
    def backlog(self) -> int:
        """Rows that were read, or are known to wait in the source, and whose output is not in the sink."""
        return backlog_of(self._parts)

    @property
    def money(self) -> Money:
        """Cost of hosts and burst workers since the query was started."""
        return self._parts.bill.money

    @property
    def is_active(self) -> bool:
        return not self._done.is_set()

    def exception(self) -> BaseException | None:
        """The error of a query that has failed; else None."""
        return self._error

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the query ends, for `timeout` seconds at most. Raises its error if it failed.

        Returns whether it has ended.
        """
        ended = self._done.wait(timeout)
        if ended and self._error is not None:
            raise self._error
        return ended

    def stop(self) -> None:
        """Stop the query and its hosts after the current epoch, and its dashboard, and wait for that."""
        self._parts.stopping.set()
        if threading.current_thread() is not self._driver:
            self._done.wait()
            if self._dashboard is not None:
                self._dashboard.stop()

    def spark_query(self) -> StreamingQuery:
        """The Spark query that runs this flow, once it has been started. A live flow has none."""
        if not isinstance(self._parts, FlowParts):
            raise PenstockError("a live flow has no Spark query")
        epochs = self._parts.epochs
        while not epochs.launched.wait(0.1):
            if self._done.is_set():
                raise self._error or PenstockError("this query has ended without a Spark query")
        assert epochs.streaming is not None
        return epochs.streaming

    def move(
        self, step: str, slots: Iterable[int] = (), to: str = "", *, keys: Iterable[Any] = ()
    ) -> None:
        """Move these slots of a step, or these keys without the rest of their slots, to the host `to`, from
        the next epoch on.

        `migration` says how their state moves. Hosts have names like "sum/0", as in `status.hosts`. A key is
        a value, or a tuple with a value for each key column; for windows, the last one is the window's start.
        Keys that moved away from their slot return to it when the whole slot is moved.
        """
        self._must_run(moving=True)
        self._relocation.move(step, slots, to, keys)

    def scale(self, step: str, hosts: int) -> None:
        """Scale a step to this number of hosts. Returns at once; slots move when new hosts are up."""
        self._must_run(moving=True)
        more = hosts - len(self._relocation.hosts(step)) if step in self._start.hosts else 0
        if more > 0:
            parts = self._parts
            check_cores(self._start.spark, parts.hosts_wanted + more, len(parts.couriers) or 1)
        self._relocation.scale(step, hosts)

    @property
    def migration(self) -> Migration:
        """How state moves with its slots. It can be set, for example to "batched(8)"."""
        return self._relocation.migration

    @migration.setter
    def migration(self, migration: str | Migration) -> None:
        self._must_run(moving=True)
        self._relocation.migration = Migration.parse(migration)

    def placements(self) -> dict[str, list[dict[str, Any]]]:
        """Step -> slots of each host, since which epoch, and why."""
        return self._relocation.placements()

    def host_memory(self) -> dict[str, int]:
        """Resident memory of each host's process, in bytes."""
        return self._parts.fleet.memory()

    @property
    def control(self) -> ControlLoop:
        """The control loop that keeps the SLA, with its journal and settings."""
        if self._control is None:
            raise SettingError(
                "autoscaling is off for this query: its hosts stay as they are",
                hint='start it with flow.sla(latency="1s").elastic()',
            )
        return self._control

    @property
    def is_elastic(self) -> bool:
        """Whether autoscaling is on."""
        return self._control is not None

    def steer(self, steering: Steering | None = None, **changes: Any) -> dict[str, Any]:
        """Change the SLA, the policy or its limits from the next decision on. Returns the new settings.

        The changes are fields of `Steering`: `query.steer(latency="2s", at_most=12)`.
        """
        self._must_run()
        wanted = steering or Steering.of(**changes)
        if wanted.at_most is not None:
            hosts = sum(min(step.slots, wanted.at_most) for step in self._start.flow.keyed)
            check_cores(self._start.spark, hosts)
        settings = self.control.steer(wanted)
        self._parts.success.set(self.control.machine.sla)
        bound = self._parts.start.bound if isinstance(self._parts, FlowParts) else None
        if bound is not None and self.control.machine.sla is not None:
            bound.latency_ms = self.control.machine.sla.latency_ms
        return settings

    @property
    def recording(self) -> Recording:
        """The query in each second of the last hour, as the dashboard shows it, and its journal."""
        return self._recorder

    def report(self, path: str | Path, png: str | Path | None = None) -> None:
        """Write a report of this start of the flow: an HTML file that needs nothing else, with charts and a
        summary. `png` is a folder for plots as PNG files; it needs the extra `report`."""
        write_report(self._recorder, path)
        if png is not None:
            save_plots(self._recorder, png)

    @property
    def dashboard_url(self) -> str | None:
        """Address of the query's dashboard; None if it has none. It shows the end too, until `stop`."""
        return None if self._dashboard is None else self._dashboard.url

    @property
    def journal(self) -> list[Entry]:
        """Decisions, their reasons and their outcomes, oldest first."""
        return [] if self._control is None else self._control.journal.last(_JOURNAL_KEPT)

    def _must_run(self, moving: bool = False) -> None:
        if self._done.is_set():
            raise SettingError("this query has ended", hint="start the flow again")
        if moving and not self._start.flow.keyed:
            raise SettingError(
                "this flow has no keyed step: it has no hosts to scale, and no slots to move",
                hint="Spark spreads its rows over the partitions of its source",
            )
        if moving and self._start.flow.one_host:
            raise SettingError(
                "this flow runs on one host: its slots cannot move",
                hint="start it without on_one_host() to scale it or to move slots",
            )

    # -- the query's thread

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
        """Log a line about the query."""
        name = self._start.name or self._start.flow_id
        fields |= {"query": name, "run_id": self.run_id, "checkpoint": self._parts.store.uri}
        _log.log(level, "Query %s (run %s) %s.", name, self.run_id, what, extra=fields)

    def _log_failure(self, error: BaseException) -> None:
        """Log the error of the query, with a traceback unless it is one of Penstock's own."""
        if isinstance(error, PenstockError):
            self._log(logging.ERROR, f"has failed: {error}", reason=str(error))
            return
        name = self._start.name or self._start.flow_id
        text, fields = reason(str(error)), {"query": name, "run_id": self.run_id}
        _log.error("Query %s has failed: %s", name, text, extra=fields, exc_info=error)

    def _extent(self) -> str:
        """Hosts and checkpoint, for the first log line."""
        hosts = self._start.hosts
        counts = [f"{count} host{'s' * (count != 1)} of {step}" for step, count in hosts.items()]
        return f"{', '.join(counts) or 'no hosts'} and checkpoint {self._parts.store.uri}"

    def _start_up(self) -> None:
        parts = self._parts
        arm(parts.start.settings.faults)
        self._recorder.start()
        parts.start_up()
        location, pid = parts.registry.location, os.getpid()
        # The dashboard's address is in the user's own file: its readers add the token to it.
        key = ControlKey(
            location,
            parts.control_token,
            socket.gethostname(),
            pid,
            self._start.settings.tls,
            self.dashboard_url,
        )
        parts.key_file.keep(key)
        whose = {"flow": self._start.flow_id, "run": self.run_id}
        parts.store.write_control({"location": location, "pid": pid} | whose)

    def _clean_up(self) -> None:
        """End all parts one after another, even if one of them fails or hangs."""
        parts = self._parts
        for end in (self._recorder.stop, *parts.ends()):
            if failed := _failure(end, _END_S):
                self._log(logging.WARNING, f"did not end cleanly: {failed}", reason=str(failed))
                if self._error is None:
                    self._error, self._state = failed, "failed"
        arm(())
        self._report()
        if parts.start.temporary:
            shutil.rmtree(parts.start.temporary, ignore_errors=True)

    def _report(self) -> None:
        """Write the report that `Flow.start` was asked for. An error costs the report, never the query."""
        path = self._start.report
        if path is None:
            return
        try:
            self.report(path)
        except Exception as failed:
            self._log(logging.WARNING, f"has no report: {failed}", reason=str(failed))
        else:
            self._log(logging.INFO, f"has a report in {path}", report=path)


def _judged(parts: QueryParts) -> tuple[int, int]:
    """Windows of the SLA's first bound that have ended, and those that were kept."""
    meter = parts.success.main
    return (0, 0) if meter is None else (meter.windows, meter.kept)


def _failure(end: Callable[[], object], limit_s: float) -> BaseException | None:
    """The error of a function, which may be that it took too long; None if it succeeded."""
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
        return PenstockError(f"{name} did not end within {limit_s:g} s")
    return failed[0] if failed else None

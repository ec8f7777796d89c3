"""A run of a live courier: from one start, or recovery, of the flow's couriers to the next.

One thread decides and sends. The threads of streams and sources only put events into its queue. Another
thread reports passed epochs to the driver, and one releases rows that were held back until their epoch was
durable.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

from penstock import codec
from penstock.errors import HostLostError, PenstockError, to_wire
from penstock.live.busy import BusyTime
from penstock.live.channels import Answered, Ended, HostStream
from penstock.live.junction import Lane
from penstock.live.puller import Pulled, Puller, PullFailed, as_error
from penstock.live.sinks.sink import NEVER, LiveSink, LiveWriter
from penstock.live.sources.source import LiveSource
from penstock.live.traffic import Traffic
from penstock.logs import LogStyle
from penstock.offload.courier.redirect import Returned
from penstock.plan.steps import FlowPlan
from penstock.settings import Settings
from penstock.wire.access import Access
from penstock.wire.flight import Endpoint, Endpoints, greet_all
from penstock.wire.live import (
    CourierCounts,
    EpochPassed,
    Guides,
    LiveOrder,
    Message,
    StreamHeader,
)

_log = logging.getLogger("penstock.live")

_JOIN_S = 5.0
"""Seconds to wait for a thread to end."""
_COUNTED_MS = 500
"""Timeout of a call that sends counts to the driver, in milliseconds."""
_AGAIN_S = 0.2
"""Seconds before a report is retried when the driver did not answer."""


@dataclass(frozen=True)
class CourierTask:
    """Everything that a courier needs to start, as Spark ships it."""

    name: str
    flow: FlowPlan
    sources: tuple[LiveSource, ...]
    sink: LiveSink
    driver: str
    access: Access
    local: bool
    settings: Settings
    keep_late: bool = False
    """Whether late rows are kept for the user, not only counted."""
    helped: bool = False
    """Whether the flow may use burst workers: then the courier may have to do their work itself."""
    log: LogStyle | None = None
    """Level and format of log lines; None: Python's defaults."""


class _Halt:
    """Ends the run."""


@dataclass(frozen=True)
class _ReleaseFailed:
    """Releasing the rows of a durable epoch failed."""

    error: Exception


_Event = (
    Answered | Ended | Pulled | PullFailed | Message | Guides | Returned | _ReleaseFailed | _Halt
)


class CourierRun:
    """One run of one courier, in its own thread. It ends when it is halted or fails. A failure is reported to
    the driver once. `on_death` is called if the run ends as if the process had died, without a report."""

    def __init__(
        self,
        task: CourierTask,
        order: LiveOrder,
        driver: Endpoint,
        endpoints: Endpoints,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self.order = order
        self._task, self._settings = task, task.settings
        self._driver, self._endpoints, self._on_death = driver, endpoints, on_death
        self._events: SimpleQueue[_Event] = SimpleQueue()
        self._reports: SimpleQueue[EpochPassed | CourierCounts | None] = SimpleQueue()
        self._durable: SimpleQueue[int | None] = SimpleQueue()
        self._telling = threading.Lock()
        self._halted = threading.Event()
        self._busy = BusyTime()
        self._streams: list[HostStream] = []
        self._pullers: dict[int, Puller] = {}
        self._run_thread = threading.Thread(target=self._run, name="live-run", daemon=True)
        self._report_thread = threading.Thread(target=self._report, name="live-report", daemon=True)
        self._release_thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the threads of the run."""
        self._run_thread.start()
        self._report_thread.start()

    def tell(self, message: Message) -> None:
        """Queue a control message from the driver, to be sent between chunks. Called by another thread. It
        also connects to new hosts, so that the run's thread does not wait for that."""
        with self._telling:  # so that messages keep their order
            if message.reroute is not None:
                for handing in message.reroute.handings:
                    with suppress(HostLostError):
                        endpoint = self._endpoints.at(handing.target_location)
                        endpoint.greet(self._settings.host_lost_ms)
            self._events.put(message)

    def guide(self, guides: Guides) -> None:
        """Queue new guidance for the rows of keyed steps. Called by another thread."""
        self._events.put(guides)

    def release(self, epoch: int) -> None:
        """Release rows that were held back until this epoch was durable. Called by another thread."""
        self._durable.put(epoch)

    def halt(self) -> None:
        """Stop polling and sending, and abort all streams. Returns when that is done. A poll in progress may
        go on for a moment, but its rows are dropped."""
        self._halted.set()
        self._events.put(_Halt())
        for stream in list(self._streams):
            stream.cancel()
        for thread in (self._run_thread, self._report_thread):
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(_JOIN_S)

    def join(self) -> None:
        """Wait for polls that were in progress when the run ended."""
        for puller in self._pullers.values():
            puller.join(_JOIN_S)

    def _run(self) -> None:
        with ExitStack() as kept:
            kept.callback(self._let_go)
            try:
                self._loop(kept)
            except Exception as failed:
                self._trouble(as_error(failed))
            except BaseException:  # as if the process had died: no report
                self._on_death()

    def _trouble(self, error: PenstockError) -> None:
        """Report to the driver that this run failed, unless it was halted already."""
        if self._halted.is_set():
            return
        order = self.order
        _log.info(
            "Courier %d failed in run %d: %s",
            order.courier,
            order.run,
            error,
            extra={"courier": order.courier, "run": order.run, "reason": str(error)},
        )
        facts = {"run": order.run, "courier": order.courier, "error": to_wire(error)}
        with suppress(PenstockError):
            self._driver.call("stream_trouble", self._settings.rpc_timeout_ms, **facts)

    def _let_go(self) -> None:
        """Abort all streams and end all threads. Does not wait for the threads of sources: a poll may take
        100 ms, and the next run may start before it ends."""
        self._halted.set()
        self._reports.put(None)
        self._durable.put(None)
        for stream in self._streams:
            stream.cancel()
        for puller in self._pullers.values():
            puller.close()
        for stream in self._streams:
            stream.join(_JOIN_S)

    def _loop(self, kept: ExitStack) -> None:
        task, order, events = self._task, self.order, self._events
        writer = task.sink.writer(order.courier, task.flow.output)
        kept.callback(self._end_releasing, writer)
        work = partial(self._release, writer)
        self._release_thread = threading.Thread(target=work, name="live-release", daemon=True)
        self._release_thread.start()
        for number, positions in order.positions.items():
            if not positions:
                continue
            reader = partial(task.sources[number].reader, positions)
            self._pullers[number] = Puller(number, reader, self._put)
        places = (place.location for step in order.steps for place in step.hosts)
        greet_all(map(self._endpoints.at, dict.fromkeys(places)), self._settings.host_lost_ms)
        traffic = Traffic(
            task.flow,
            order,
            task.settings,
            task.access,
            self._pullers,
            self._connect,
            writer,
            self._reports.put,
            task.keep_late,
            self._put,
            self._busy.taken_ms,
        )
        kept.callback(traffic.close)
        while not self._halted.is_set():
            look_at = traffic.act()
            timeout = None if look_at == NEVER else max(look_at - time.monotonic(), 0.0)
            try:
                event = events.get(timeout=timeout)
                while not self._halted.is_set():  # what aborted streams deliver is meaningless
                    _take(traffic, event)
                    event = events.get_nowait()
            except Empty:
                pass

    def _release(self, writer: LiveWriter) -> None:
        """Release rows of durable epochs, until the run ends."""
        try:
            while (epoch := self._durable.get()) is not None:
                writer.release(epoch)
        except Exception as failed:
            self._events.put(_ReleaseFailed(failed))
        except BaseException:  # as if the process had died: no report
            self._on_death()

    def _end_releasing(self, writer: LiveWriter) -> None:
        self._durable.put(None)
        assert self._release_thread is not None
        self._release_thread.join(_JOIN_S)
        writer.close()

    def _connect(self, host: str, location: str, header: StreamHeader, lane: Lane) -> HostStream:
        endpoint, lost_ms = self._endpoints.at(location), self._settings.host_lost_ms
        stream = HostStream(host, endpoint, header, lane, self._put, lost_ms)
        self._streams.append(stream)
        if self._halted.is_set():  # too late for `halt` to see it
            stream.cancel()
        return stream

    def _put(self, event: _Event) -> None:
        """Put an event into the run's queue. Called by the threads of streams and sources."""
        self._busy.note()
        self._events.put(event)

    def _report(self) -> None:
        """Report passed epochs to the driver, in order, and counts."""
        while (report := self._reports.get()) is not None:
            if isinstance(report, CourierCounts):
                with suppress(PenstockError):  # the next report includes these counts
                    facts = codec.to_plain(report)
                    self._driver.call("counted", _COUNTED_MS, **facts)
                continue
            while not self._halted.is_set():
                try:
                    facts = codec.to_plain(report)
                    self._driver.call("passed", self._settings.rpc_timeout_ms, **facts)
                except HostLostError:
                    self._halted.wait(_AGAIN_S)
                except PenstockError as refused:
                    _log.warning(
                        "The driver refused the report on epoch %d of courier %d: %s",
                        report.epoch,
                        report.courier,
                        refused,
                        extra={"epoch": report.epoch, "courier": report.courier},
                    )
                    break
                else:
                    break


def _take(traffic: Traffic, event: _Event) -> None:
    """Pass an event to the traffic of the run. Raises the error of one that failed."""
    match event:
        case Answered(stream, batch, back):
            traffic.answered(stream, batch, back)
        case Pulled(source, polled, ended):
            traffic.pulled(source, polled, ended)
        case Message():
            traffic.tell(event)
        case Returned():
            traffic.returned(event)
        case Guides():
            traffic.guide(event)
        case Ended(stream, None):
            traffic.ended(stream)
        case Ended(_, error) | PullFailed(_, error) | _ReleaseFailed(error):
            assert error is not None
            raise error

"""A courier's channels to the hosts of a step."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pyarrow as pa
import pyarrow.flight as fl

from penstock import codec
from penstock.errors import HostLostError, PenstockError, StaleRunError
from penstock.exchange.aside import Aside
from penstock.exchange.split import split
from penstock.exchange.tally import Tally
from penstock.faults import point
from penstock.operators.operator import Outgoing
from penstock.operators.places import in_order, split_places, with_serial
from penstock.plan.epoch import StepRoutes
from penstock.wire.access import Access
from penstock.wire.flight import AnswerWatch, Endpoint, Endpoints, counted_on, greet_all
from penstock.wire.messages import ChannelHeader, Close

_ASK_S = 0.5
"""Seconds between two checks of open channels."""

_endpoints = Endpoints()
"""Connections that a Python worker keeps between tasks. A new run has a new token, so runs cannot mix."""


def endpoint(location: str, access: Access) -> Endpoint:
    """Return the cached connection to a location, or a new one."""
    return _endpoints.at(location, access)


def close_endpoints(access: Access) -> None:
    """Close the kept connections of a run whose driver has ended."""
    _endpoints.close(access)


class Channels:
    """Channels of one task attempt to all hosts of one step: write, end, then read the answers.

    Every courier opens a channel to every host, even if it has no rows for it. A host counts closed
    channels to know when the epoch's input is complete.

    If the flow is `ordered`, each record is sent with a serial number. Answers come back with the places
    of their rows, and are sorted by them.

    Used as a context manager. If one host is lost, the streams to the others are cancelled. While it is
    open, a thread asks the driver twice a second whether the run and its hosts are still valid, and pings
    the hosts. If one of these fails, the thread cancels all streams, so that a host that hangs does not
    block the task. These requests also show the driver that the courier is alive.
    """

    def __init__(
        self,
        header: ChannelHeader,
        routes: StepRoutes,
        driver: str,
        access: Access,
        timeout_ms: int,
        lost_ms: int,
        ordered: bool,
    ) -> None:
        self._header, self._routes = header, routes
        self._driver, self._access = driver, access
        self._timeout_ms, self._lost_ms = timeout_ms, lost_ms
        self._left = threading.Event()
        self._broken: PenstockError | None = None
        self._endpoints: list[Endpoint] = []
        self._ordered, self._serial = ordered, 0
        self._streams: list[tuple[fl.FlightStreamWriter, fl.FlightStreamReader]] = []
        self._sent: dict[int, int] = {}
        """Host, by its number in the routes -> number of records sent to it."""

    def __enter__(self) -> Channels:
        header = codec.encode(self._header)
        with ExitStack() as stack:
            hosts = [endpoint(location, self._access) for location in self._routes.endpoints]
            greet_all(hosts, self._lost_ms)
            for host in hosts:
                exchange = host.exchange(header, self._timeout_ms)
                self._streams.append(stack.enter_context(exchange))
                self._endpoints.append(host)
            self._stack = stack.pop_all()
        if self._driver:
            threading.Thread(target=self._watch, name="channels-watch", daemon=True).start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._left.set()
        try:
            self._stack.__exit__(*raised)  # type: ignore[arg-type]
        finally:
            if self._broken is not None:
                raise self._broken

    def _watch(self) -> None:
        """Cancel the streams when the run was given up or a host does not answer."""
        watch = AnswerWatch(self._endpoints, self._lost_ms, _ASK_S)
        while not self._left.wait(_ASK_S):
            driver, where = endpoint(self._driver, self._access), self._header
            locations = list(self._routes.endpoints)
            here = {"epoch": where.epoch, "run": where.run, "task": where.task}
            if not counted_on(driver, locations=locations, **here):
                self._broken = StaleRunError(f"run {where.run} of epoch {where.epoch} was given up")
                break
            try:
                watch.ask()
            except HostLostError as silent:
                self._broken = silent
                break
        else:
            return
        for _, reader in self._streams:
            reader.cancel()

    def send(self, outgoing: Outgoing, tally: Tally) -> None:
        """Send each record to the host that owns its slot, and count it."""
        batch, slots = outgoing.batch, tally.note(*outgoing)
        if self._ordered:
            batch, self._serial = with_serial(batch, self._serial), self._serial + batch.num_rows
        for host, part in split(batch, slots, self._routes.routes):
            self.write(host, part)

    def write(self, host: int, batch: pa.RecordBatch) -> None:
        """Send a batch to one host, by its number in the routes."""
        writer = self._streams[host][0]
        with self._endpoints[host].hearing_errors():
            if host not in self._sent:
                writer.begin(batch.schema)
            writer.write_batch(batch)
        self._sent[host] = self._sent.get(host, 0) + batch.num_rows

    def end(self, kind: str, rows: int, alone: bool = False) -> None:
        """Close the channels. `kind` is the kind of their records, `rows` counts the task's whole input.

        With `alone`, this also closes the task's second channels, which have no records.
        """
        for host, (writer, _) in enumerate(self._streams):
            close = Close(kind, self._sent.get(host, 0), rows, alone)
            with self._endpoints[host].hearing_errors():
                writer.write_metadata(codec.encode(close))
                writer.done_writing()

    def answer(self, aside: Aside) -> list[pa.RecordBatch]:
        """Read the rows of all hosts' answers, ordered by host or by place.

        Dead letters and late rows are added to `aside`.
        """
        batches = []
        for host, (_, reader) in zip(self._endpoints, self._streams, strict=True):
            with host.hearing_errors():
                for chunk in reader:
                    if chunk.data is not None and chunk.data.num_rows:
                        batches.append(chunk.data)
                    if chunk.app_metadata is not None:
                        aside.add(codec.decode(chunk.app_metadata.to_pybytes(), Aside))
        return in_order(*split_places(batches)) if self._ordered else batches

    def pass_point(self, name: str, **facts: object) -> None:
        """Pass a fault point, with the facts of these channels."""
        point(name, **self._header.where, **facts)

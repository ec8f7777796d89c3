"""Arrow Flight with a token on every call: the server base and the client of all endpoints.

A `PenstockError` raised in a handler reaches the caller as the same kind of error.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as fl

from penstock import codec, errors
from penstock.errors import HostLostError, PenstockError
from penstock.wire.access import CONTROL, Access, TokenCheck
from penstock.wire.addresses import Listen
from penstock.wire.silence import Silences

T = TypeVar("T")

PING = "ping"
"""Name of the action that every server answers, with any of its tokens."""
COUNTED_ON = "counted_on"
"""Name of the driver's action that tells whether it still relies on hosts, by location, and on a run."""

_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_CUT_MS = 5_000
"""Milliseconds without acknowledged bytes after which a connection is closed.

A network that drops packets reports no error. Without this timeout, calls and streams would hang for minutes,
even after the network has recovered.
"""
_NOTICES_CUTS = [
    # This is not for the pings, which servers allow at most every five minutes. It makes gRPC ask the system
    # to close a connection whose bytes are not acknowledged for as long as the next option says.
    ("grpc.keepalive_time_ms", 5 * 60_000),
    ("grpc.keepalive_timeout_ms", _CUT_MS),
    # Time for one attempt to connect. After a failure the next attempt begins soon, not after two minutes.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
_ASK_MS = 1_000
"""Timeout of a ping, in milliseconds."""


@contextmanager
def telling_errors() -> Iterator[None]:
    """Turn an error of the handler into a Flight error, which `Endpoint` turns back."""
    try:
        yield
    except fl.FlightError:
        raise
    except PenstockError as error:
        raise fl.FlightServerError(errors.to_wire(error)) from None
    except Exception as defect:
        # Sent as an error of its own, so that a host that answers does not look lost.
        failure = PenstockError(f"a host failed with {type(defect).__name__}: {defect}")
        raise fl.FlightServerError(errors.to_wire(failure)) from defect


class TokenServer(fl.FlightServerBase):  # type: ignore[misc]
    """A Flight server whose actions are functions: a JSON object in, a value that the codec can encode out.

    Handlers run in Flight's own threads. A subclass does its own locking.
    """

    def __init__(self, listen: Listen, access: Access, control: str | None = None) -> None:
        """Start the server. `control_*` actions require the token `control`; all others the run token."""
        self._listen, self._access = listen, access
        options = access.server_options() | {
            "middleware": {"token": TokenCheck(access.token, control)}
        }
        begin = super().__init__
        listen.open(lambda location: begin(access.at(location), **options))
        self.actions: dict[str, Callable[[dict[str, Any]], Any]] = {}
        self.takes: dict[str, type] = {}
        """Action -> type of its arguments (see `wire.orders`), which are checked before the action runs."""

    @property
    def location(self) -> str:
        return self._access.at(self._listen.location(self.port))

    def do_action(self, context: Any, action: fl.Action) -> Iterable[bytes]:
        with telling_errors():
            if action.type == PING:
                return [codec.encode(None)]
            self._must_be_allowed(context, action.type)
            handler = self.actions.get(action.type)
            if handler is None:
                raise errors.ProtocolError(
                    f"unknown action {action.type!r}",
                    hint="run the same version of Penstock everywhere",
                )
            self._access.must_fit(action.body.size)
            facts = codec.decode(action.body.to_pybytes(), dict[str, Any])
            if action.type in self.takes:
                codec.from_plain(facts, self.takes[action.type])
            return [codec.encode(handler(facts))]

    def _must_be_allowed(self, context: Any, action: str) -> None:
        """Refuse an action that does not belong to the call's token."""
        if action.startswith(CONTROL) != (context.get_middleware("token") is not None):
            raise fl.FlightUnauthorizedError(f"this token does not open the action {action}")


def client(location: str, access: Access) -> fl.FlightClient:
    """Return a plain Flight client of one server. Its calls must also send the `headers` of the access."""
    options = _UNLIMITED + _NOTICES_CUTS
    return fl.FlightClient(location, generic_options=options, **access.client_options())


class Endpoint:
    """A client of one `TokenServer`. Safe to use from several threads."""

    def __init__(self, location: str, access: Access) -> None:
        self.location = location
        self._client = client(location, access)
        self._headers = access.headers
        self._calls, self._lock = set[object](), threading.Lock()
        self._closed = False
        self.greeted = False
        """Whether the server has answered on the current connection."""

    @property
    def busy(self) -> bool:
        """Whether a call is running."""
        return bool(self._calls)

    def greet(self, timeout_ms: int) -> None:
        """Wait for a first answer, once. A stream opened without a connection could not be cancelled."""
        if not self.greeted:
            self.call(PING, timeout_ms)
            self.greeted = True

    def call(self, action: str, timeout_ms: int, **arguments: Any) -> Any:
        """Call an action and wait for its answer."""
        with self.hearing_errors():
            body = codec.encode(arguments)
            results = self._client.do_action(fl.Action(action, body), self._options(timeout_ms))
            return codec.decode(next(iter(results)).body.to_pybytes(), object)

    @contextmanager
    def exchange(
        self, header: bytes, timeout_ms: int | None
    ) -> Iterator[tuple[fl.FlightStreamWriter, fl.FlightStreamReader]]:
        """Open a two-way stream of batches. Without a timeout it stays open as long as both sides want.

        Leaving the context with an error cancels it.
        """
        descriptor = fl.FlightDescriptor.for_command(header)
        with self.hearing_errors():
            writer, reader = self._client.do_exchange(descriptor, self._options(timeout_ms))
            try:
                yield writer, reader
            except BaseException:
                reader.cancel()
                with suppress(Exception):  # without it Arrow writes an error to stderr
                    writer.close()
                raise
            writer.close()

    @contextmanager
    def get(self, ticket: bytes, timeout_ms: int) -> Iterator[fl.FlightStreamReader]:
        """Open a stream of batches to read. Leaving the context with an error cancels it."""
        with self.hearing_errors():
            reader = self._client.do_get(fl.Ticket(ticket), self._options(timeout_ms))
            try:
                yield reader
            except BaseException:
                reader.cancel()
                raise

    def close(self) -> None:
        """Close the connection as soon as running calls have ended. Later calls raise HostLostError."""
        with self._lock:
            self._closed = True
            if not self._calls:
                self._client.close()

    def _options(self, timeout_ms: int | None) -> fl.FlightCallOptions:
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        return fl.FlightCallOptions(timeout=timeout_s, headers=self._headers)

    @contextmanager
    def hearing_errors(self) -> Iterator[None]:
        """Turn Flight's errors into the error that the other side raised, or into HostLostError."""
        call = object()
        with self._lock:
            if self._closed:
                raise HostLostError(
                    f"the connection to {self.location} is closed", location=self.location
                )
            self._calls.add(call)
        try:
            yield
        except (pa.ArrowException, OSError) as failed:
            raised = errors.find(str(failed))
            if raised is not None:
                raise raised from None
            if self._closed or isinstance(failed, fl.FlightError | OSError):
                self.greeted = False
                raise HostLostError(
                    f"no answer from {self.location}: {_first_line(failed)}",
                    location=self.location,
                ) from failed
            raise
        finally:
            with self._lock:
                self._calls.discard(call)
                # Arrow crashes if a connection is closed during a call.
                if self._closed and not self._calls:
                    self._client.close()


def greet_all(endpoints: Iterable[Endpoint], timeout_ms: int) -> None:
    """Wait for a first answer of each endpoint. Raise an error that names all that did not answer."""
    new = [endpoint for endpoint in endpoints if not endpoint.greeted]
    greetings = {e: in_own_thread(partial(e.greet, timeout_ms), "greet") for e in new}
    errors = {e.location: greeting.exception() for e, greeting in greetings.items()}
    silent = [location for location, error in errors.items() if isinstance(error, HostLostError)]
    if silent:
        raise no_answer(silent, timeout_ms)
    for error in filter(None, errors.values()):
        raise error


def no_answer(locations: Iterable[str], silent_ms: float) -> HostLostError:
    """Return the error for locations that have not answered for this many milliseconds."""
    at = " ".join(locations)
    return HostLostError(f"no answer from {at} for {silent_ms / 1000:.0f} s", location=at)


class AnswerWatch:
    """Pings endpoints, and measures how long each has not answered.

    It helps to notice a lost host during a call or a stream that would just hang.
    """

    def __init__(self, endpoints: Iterable[Endpoint], lost_ms: float, every_s: float) -> None:
        """Watch these endpoints. `every_s` is the number of seconds between two calls of `ask`."""
        self._endpoints, self._lost_ms = tuple(endpoints), lost_ms
        self._answers = {endpoint.location: 0 for endpoint in self._endpoints}
        self._silences = Silences[str](every_s * 1000 + _ASK_MS)

    def ask(self) -> None:
        """Ping all endpoints. If one was silent for `lost_ms`, raise an error that names the silent ones."""
        pings = {e: in_own_thread(partial(e.call, PING, _ASK_MS), "ask") for e in self._endpoints}
        for endpoint, ping in pings.items():
            if ping.exception() is None:
                self._answers[endpoint.location] += 1
        silent = self._silences.tick(time.monotonic() * 1000, self._answers)
        longest_ms = max(silent.values(), default=0.0)
        if longest_ms > self._lost_ms:
            # Others on the same machine may have answered a moment longer.
            raise no_answer((at for at, ms in silent.items() if ms > longest_ms / 2), longest_ms)


def in_own_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Run a call in its own thread, so that the caller can abandon it: a host may never answer."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as failed:
            outcome.set_exception(failed)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome


def counted_on(driver: Endpoint, timeout_ms: int = _ASK_MS, **facts: Any) -> bool:
    """Ask the driver whether it still relies on these `locations`, and on this `epoch` and `run`, if given.

    True if the driver does not answer.
    """
    try:
        return bool(driver.call(COUNTED_ON, timeout_ms, **facts))
    except PenstockError:
        return True


class Endpoints:
    """A cache of clients, one for each server. Safe to use from several threads.

    Servers come and go, and with them locations and tokens. A client that was not used for a while is
    closed when another one connects.
    """

    def __init__(
        self,
        access: Access | None = None,
        clock: Callable[[], float] = time.monotonic,
        idle_s: float = 60.0,
    ) -> None:
        self._access, self._clock, self._idle_s = access or Access(""), clock, idle_s
        self._known: dict[tuple[str, Access], tuple[Endpoint, float]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def at(self, location: str, access: Access | None = None) -> Endpoint:
        """Return the client of a server, with this access or the one that all clients share."""
        place, now = (location, access or self._access), self._clock()
        with self._lock:
            cached = self._known.get(place)
            if cached is None:
                self._close_idle(now)
            endpoint = Endpoint(*place) if cached is None else cached[0]
            self._known[place] = (endpoint, now)
        return endpoint

    def close(self, access: Access | None = None) -> None:
        """Close all clients, or those with this access."""
        with self._lock:
            for place in [p for p in self._known if access in (None, p[1])]:
                self._known.pop(place)[0].close()

    def _close_idle(self, now: float) -> None:
        for place, (endpoint, used) in list(self._known.items()):
            if not endpoint.busy and now - used > self._idle_s:
                del self._known[place]
                endpoint.close()


def _first_line(error: Exception) -> str:
    """Return the message of an error without the text that Flight and gRPC put around it.

    >>> _first_line(OSError("Flight returned unavailable error, with message: Socket closed. gRPC client \
debug context: UNAVAILABLE:Socket closed"))
    'Socket closed'
    """
    line = str(error).strip().split("\n")[0]
    line = re.sub(r"^Flight returned \w+ error, with message: ", "", line)
    line = re.sub(r"^failed to connect to all addresses; last error: \w+: \S+ ", "", line)
    return line.split(". gRPC client debug context")[0][:300]

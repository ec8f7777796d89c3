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
"""The action by which every server shows that it answers, to any of its tokens."""
COUNTED_ON = "counted_on"
"""The action by which the driver says whether it still counts on hosts, by their locations, and on a run."""

_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_CUT_MS = 5_000
"""Milliseconds without a sign that bytes arrive after which a connection is broken off. A network that drops
packets tells nobody: without this, calls and streams would hang for minutes, also when it is whole again."""
_NOTICES_CUTS = [
    # Not for its pings, which servers allow every five minutes at most: with it gRPC has the system watch
    # for bytes that nobody acknowledges, for as long as the next one says.
    ("grpc.keepalive_time_ms", 5 * 60_000),
    ("grpc.keepalive_timeout_ms", _CUT_MS),
    # One try to connect may take so long; after one that failed, the next begins soon, not in two minutes.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
_ASK_MS = 1_000
"""Timeout of a question whether somebody answers."""


@contextmanager
def telling_errors() -> Iterator[None]:
    """Turn an error of the handler into a Flight error that `Endpoint` turns back."""
    try:
        yield
    except fl.FlightError:
        raise
    except PenstockError as error:
        raise fl.FlightServerError(errors.to_wire(error)) from None
    except Exception as defect:
        # Told as it is, so that nobody takes a host that answers for a lost one.
        told = PenstockError(f"a host failed with {type(defect).__name__}: {defect}")
        raise fl.FlightServerError(errors.to_wire(told)) from defect


class TokenServer(fl.FlightServerBase):  # type: ignore[misc]
    """A Flight server whose actions are methods: a JSON object in, a value that the codec takes out.

    Handlers run in Flight's own threads; a subclass does its own locking.
    """

    def __init__(self, listen: Listen, access: Access, control: str | None = None) -> None:
        """`control` is the token that opens `control_*` actions, and nothing else does."""
        self._listen, self._access = listen, access
        options = access.server_options() | {
            "middleware": {"token": TokenCheck(access.token, control)}
        }
        begin = super().__init__
        listen.open(lambda location: begin(access.at(location), **options))
        self.actions: dict[str, Callable[[dict[str, Any]], Any]] = {}
        self.takes: dict[str, type] = {}
        """Action -> what it takes (see `wire.orders`); it is checked before the action is done."""

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
                raise errors.ProtocolError(f"no action {action.type!r} here")
            self._access.must_fit(action.body.size)
            facts = codec.decode(action.body.to_pybytes(), dict[str, Any])
            if action.type in self.takes:
                codec.from_plain(facts, self.takes[action.type])
            return [codec.encode(handler(facts))]

    def _must_be_allowed(self, context: Any, action: str) -> None:
        """Each of the two tokens opens its own actions."""
        if action.startswith(CONTROL) != (context.get_middleware("token") is not None):
            raise fl.FlightUnauthorizedError(f"this token does not open the action {action}")


def client(location: str, access: Access) -> fl.FlightClient:
    """A bare client of one server; calls want the `headers` of the access, too."""
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
        """Whether it has answered, on the connection that there is."""

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return bool(self._calls)

    def greet(self, timeout_ms: int) -> None:
        """Wait for a first answer, once: a conversation that begins before there is a connection cannot
        be broken off."""
        if not self.greeted:
            self.call(PING, timeout_ms)
            self.greeted = True

    def call(self, action: str, timeout_ms: int, **arguments: Any) -> Any:
        """Ask for an action and wait for its answer."""
        with self.hearing_errors():
            body = codec.encode(arguments)
            results = self._client.do_action(fl.Action(action, body), self._options(timeout_ms))
            return codec.decode(next(iter(results)).body.to_pybytes(), object)

    @contextmanager
    def exchange(
        self, header: bytes, timeout_ms: int | None
    ) -> Iterator[tuple[fl.FlightStreamWriter, fl.FlightStreamReader]]:
        """A conversation in batches; without a time-out it lasts as long as both want. Leaving it early
        breaks it off."""
        descriptor = fl.FlightDescriptor.for_command(header)
        with self.hearing_errors():
            writer, reader = self._client.do_exchange(descriptor, self._options(timeout_ms))
            try:
                yield writer, reader
            except BaseException:
                reader.cancel()
                with suppress(Exception):  # else Arrow complains of the broken stream on stderr
                    writer.close()
                raise
            writer.close()

    @contextmanager
    def get(self, ticket: bytes, timeout_ms: int) -> Iterator[fl.FlightStreamReader]:
        """A stream of batches, as it comes. Leaving it early breaks it off."""
        with self.hearing_errors():
            reader = self._client.do_get(fl.Ticket(ticket), self._options(timeout_ms))
            try:
                yield reader
            except BaseException:
                reader.cancel()
                raise

    def close(self) -> None:
        """Let go of the connection, once calls under way have ended; those from here on find nobody."""
        with self._lock:
            self._closed = True
            if not self._calls:
                self._client.close()

    def _options(self, timeout_ms: int | None) -> fl.FlightCallOptions:
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        return fl.FlightCallOptions(timeout=timeout_s, headers=self._headers)

    @contextmanager
    def hearing_errors(self) -> Iterator[None]:
        """Turn what Flight raises into the error that the other side told, or into its loss."""
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
            told = errors.find(str(failed))
            if told is not None:
                raise told from None
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
                # Arrow crashes where a connection is closed under a call.
                if self._closed and not self._calls:
                    self._client.close()


def greet_all(endpoints: Iterable[Endpoint], timeout_ms: int) -> None:
    """Wait for a first answer of all; raises an error that names all that gave none."""
    strangers = [endpoint for endpoint in endpoints if not endpoint.greeted]
    greetings = {e: in_own_thread(partial(e.greet, timeout_ms), "greet") for e in strangers}
    errors = {e.location: greeting.exception() for e, greeting in greetings.items()}
    silent = [location for location, error in errors.items() if isinstance(error, HostLostError)]
    if silent:
        raise no_answer(silent, timeout_ms)
    for error in filter(None, errors.values()):
        raise error


def no_answer(locations: Iterable[str], silent_ms: float) -> HostLostError:
    """The error that nobody answers at these locations."""
    at = " ".join(locations)
    return HostLostError(f"no answer from {at} for {silent_ms / 1000:.0f} s", location=at)


class AnswerWatch:
    """Asks others whether they answer, and counts how long each has not. For whoever waits for them in a
    call or a stream that cannot tell."""

    def __init__(self, endpoints: Iterable[Endpoint], lost_ms: float, every_s: float) -> None:
        """`every_s`: seconds from one `ask` to the next."""
        self._endpoints, self._lost_ms = tuple(endpoints), lost_ms
        self._answers = {endpoint.location: 0 for endpoint in self._endpoints}
        self._silences = Silences[str](every_s * 1000 + _ASK_MS)

    def ask(self) -> None:
        """Ask all; raises an error that names those that do not answer, when one has not for too long."""
        asked = {e: in_own_thread(partial(e.call, PING, _ASK_MS), "ask") for e in self._endpoints}
        for endpoint, ping in asked.items():
            if ping.exception() is None:
                self._answers[endpoint.location] += 1
        silent = self._silences.tick(time.monotonic() * 1000, self._answers)
        longest_ms = max(silent.values(), default=0.0)
        if longest_ms > self._lost_ms:
            # Those that share its machine may have been heard a moment longer.
            raise no_answer((at for at, ms in silent.items() if ms > longest_ms / 2), longest_ms)


def in_own_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Begin a call that may be left alone: most cannot be broken off, and a host may never answer."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as failed:
            outcome.set_exception(failed)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome


def counted_on(driver: Endpoint, timeout_ms: int = _ASK_MS, **what: Any) -> bool:
    """Whether the driver counts on these `locations`, and on this `epoch` and `run`, if they are named.

    A driver that does not answer has not said no.
    """
    try:
        return bool(driver.call(COUNTED_ON, timeout_ms, **what))
    except PenstockError:
        return True


class Endpoints:
    """The clients of many servers, each connected once. Safe to use from several threads.

    Servers come and go, and with them locations and tokens: what nobody has used for a while is
    closed when another one is connected.
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
        """The client of a server; with its own access, if these do not have one in common."""
        place, now = (location, access or self._access), self._clock()
        with self._lock:
            found = self._known.get(place)
            if found is None:
                self._close_idle(now)
            endpoint = Endpoint(*place) if found is None else found[0]
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
    """What went wrong, without what Flight and gRPC put around it.

    >>> _first_line(OSError("Flight returned unavailable error, with message: Socket closed. gRPC client \
debug context: UNAVAILABLE:Socket closed"))
    'Socket closed'
    """
    line = str(error).strip().split("\n")[0]
    line = re.sub(r"^Flight returned \w+ error, with message: ", "", line)
    line = re.sub(r"^failed to connect to all addresses; last error: \w+: \S+ ", "", line)
    return line.split(". gRPC client debug context")[0][:300]

"""Messages to the registry and to hosts: of wrong shape, out of range, cut off, or from a stranger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import codec
from penstock.driver.registry import Registry
from penstock.errors import HostLostError, PenstockError, ProtocolError
from penstock.host.main import HostOrder, HostTask, TaskOrder
from penstock.host.server import HostServer
from penstock.operators.operator import EpochTime
from penstock.plan.assignment import Assignment
from penstock.wire.flight import Endpoint, TokenServer
from penstock.wire.messages import ChannelHeader, Close, CopyTicket
from tests.fuzz.fuzzing import bounded, fuzz, must_be_clear, mutated, numbers, plain, scalars
from tests.trials.cluster import SETTINGS
from tests.trials.ledger import SLOTS
from tests.trials.trial import FLOWS

FLOW = FLOWS["sums"][0]
STEP = FLOW.keyed[0]
TOKEN = "token"
SHORT_MS = 10_000
SOON = replace(SETTINGS, rpc_timeout_ms=200)
ROWS = pa.RecordBatch.from_pylist([{"k": 1, "v": 2}, {"k": 3, "v": 4}], STEP.plan.inputs[0])

ASSIGN = {"assignment": codec.to_plain(Assignment(-1, tuple(range(SLOTS)))), "wait": False}
ORDERS: dict[str, dict[str, Any]] = {
    "assign": ASSIGN,
    "seal": {"epoch": 0, "run": 0, "partitions": 1},
    "rollback": {"version": -1, "run": 0},
    "release": {},
    "compact": {"order": {"slots": [0, 1], "upto": 0, "tag": "t", "soft": True}},
    "compaction": {"tag": "t"},
    "cancel_compaction": {"tag": "t"},
    "stop": {},
    "memory": {},
}
REPORTS: dict[str, dict[str, Any]] = {
    "register": {"host": "h", "incarnation": "i", "location": "grpc://127.0.0.1:1", "pid": 1},
    "refuse": {"error": "x"},
    "heartbeat": {"host": "h", "incarnation": "i"},
    "report": {"epoch": 0, "run": 0, "partition": 0, "seen": {}},
    "set_aside": {"epoch": 0, "run": 0, "partition": 0, "aside": {}},
    "trouble": {"epoch": 0, "run": 0, "error": "x"},
}
HEADER = codec.to_plain(ChannelHeader(0, 0, STEP.id, 0, 1, 1, EpochTime(0, 1_000)))
TICKET = codec.to_plain(CopyTicket("slot", -1, (0,)))


@pytest.fixture
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostServer]:
    store = str(tmp_path_factory.mktemp("store"))
    order = TaskOrder(
        (HostOrder(f"{STEP.id}/0", STEP),), FLOW, store, "grpc://127.0.0.1:1", TOKEN, True, SOON
    )
    task = HostTask(order, "127.0.0.1", lambda: None, None)
    yield task.servers[0]
    task.end()
    task.shutdown()


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with Registry("127.0.0.1", 0, TOKEN) as made:
        made.expect(0, 0, lambda seen: None)
        yield made


@pytest.fixture
def client(host: HostServer) -> Iterator[Endpoint]:
    """Of a host that has all slots."""
    made = Endpoint(host.location, TOKEN)
    made.call("assign", SHORT_MS, **ASSIGN)
    yield made
    made.close()


def next_run(client: Endpoint) -> int:
    """Give up the run before; the number of the next one."""
    run = next(_runs)
    client.call("rollback", SHORT_MS, version=-1, run=run)
    return run + 1


_runs = count()


def ask(server: TokenServer, action: str, body: bytes, token: str = TOKEN) -> None:
    """Send an action as it is; an error must be a clear one."""
    with ExitStack() as stack:
        client = stack.enter_context(fl.FlightClient(server.location))
        headers = [(b"authorization", f"Bearer {token}".encode())]
        options = fl.FlightCallOptions(timeout=SHORT_MS / 1000, headers=headers)
        try:
            list(client.do_action(fl.Action(action, body), options))
        except fl.FlightUnauthenticatedError:
            assert token != TOKEN
        except pa.ArrowException as failed:
            told = _told(failed)
            must_be_clear(told)


def _told(failed: Exception) -> PenstockError:
    from penstock import errors

    told = errors.find(str(failed))
    assert told is not None, f"no clear error: {failed}"
    return told


def bodies(known: dict[str, dict[str, Any]]) -> st.SearchStrategy[tuple[str, bytes]]:
    """Actions with facts of which one is another, or with any facts, or with no JSON at all."""
    near = st.builds(
        lambda name, change, path: (name, json.dumps(mutated(known[name], change, path)).encode()),
        st.sampled_from(sorted(known)),
        plain | numbers,
        st.integers(0, 20),
    )
    far = st.tuples(
        st.sampled_from(sorted(known)) | st.text(min_size=1, max_size=8),
        st.binary(max_size=40) | plain.map(lambda value: json.dumps(value).encode()),
    )
    return near | far


@fuzz(120)
@given(bodies(ORDERS))
@example(("compact", b'{"order":{"slots":[1000000000000],"upto":0,"tag":"t"}}'))
@example(("compact", b'{"order":{"slots":[0],"upto":1000000000000,"tag":"../../x"}}'))
@example(("assign", b'{"assignment":{"version":-1,"owned":[-1]},"wait":false}'))
@example(("assign", b'{"assignment":{"version":-1,"owned":[100000000000000000000]},"wait":false}'))
@example(("seal", b'{"epoch":0,"run":0,"partitions":1000000000000000}'))
def test_orders_to_a_host(host: HostServer, message: tuple[str, bytes]) -> None:
    with bounded():
        ask(host, "assign", json.dumps(ASSIGN).encode())
        ask(host, *message)
        ask(host, "memory", b"{}")


@fuzz(100)
@given(bodies(REPORTS))
def test_reports_to_the_registry(registry: Registry, message: tuple[str, bytes]) -> None:
    with bounded():
        ask(registry, *message)
        ask(registry, "heartbeat", b'{"host":"x","incarnation":"y"}')
    registry.seen()
    registry.dead_letters()
    registry.late_rows()


@fuzz(20)
@given(
    bodies(ORDERS),
    st.text(max_size=8).filter(lambda t: t != TOKEN and t.isascii() and t.isprintable()),
)
def test_a_stranger(host: HostServer, message: tuple[str, bytes], token: str) -> None:
    version = host.machine.version
    client = fl.FlightClient(host.location)
    headers = [(b"authorization", f"Bearer {token}".encode())]
    options = fl.FlightCallOptions(timeout=SHORT_MS / 1000, headers=headers)
    with client, pytest.raises(fl.FlightUnauthenticatedError):
        list(client.do_action(fl.Action(*message), options))
    assert host.machine.version == version


SCHEMAS = [
    pa.schema([]),
    pa.schema([("k", pa.int64())]),
    pa.schema([("k", pa.string()), ("v", pa.int64())]),
    pa.schema([("k", pa.int64()), ("v", pa.list_(pa.int8()))]),
    pa.schema([("__key", pa.binary()), ("sum(v)", pa.int64())]),
    pa.schema([("__key", pa.large_binary()), ("sum(v)", pa.string())]),
    STEP.plan.inputs[0],
]
batches = st.builds(
    lambda schema, rows: pa.RecordBatch.from_arrays(
        [pa.nulls(rows, field.type) for field in schema], schema=schema
    ),
    st.sampled_from(SCHEMAS),
    st.integers(0, 3),
) | st.just(ROWS)
CLOSE = codec.to_plain(Close("rows", 2, 2))
words = (
    st.binary(max_size=20)
    | st.builds(mutated, st.just(CLOSE), plain | numbers, st.integers(0, 5)).map(codec.encode)
    | st.builds(
        lambda kind, records: codec.encode(CLOSE | {"kind": kind, "records": records}),
        st.sampled_from(["rows", "partials", "", "\udcff"]),
        st.integers(0, 6),
    )
)


def converse(client: Endpoint, header: Any, sent: list[pa.RecordBatch], word: bytes) -> None:
    """A channel as it is: batches of one schema, and a word at the end."""
    with client.exchange(json.dumps(header).encode(), SHORT_MS) as (writer, reader):
        for number, batch in enumerate(sent):
            if number == 0:
                writer.begin(batch.schema)
            if batch.schema.equals(sent[0].schema):
                writer.write_batch(batch)
        writer.write_metadata(word)
        writer.done_writing()
        list(reader)


@fuzz(120)
@given(
    st.builds(mutated, st.just(HEADER), plain | numbers, st.integers(0, 12))
    | plain
    | st.just(HEADER),
    st.lists(batches, max_size=2),
    words,
)
@example(HEADER, [pa.RecordBatch.from_arrays([pa.nulls(2)], names=["k"])], codec.encode(CLOSE))
@example(HEADER | {"partitions": 10**15, "partition": 10**14}, [ROWS], codec.encode(CLOSE))
def test_channels(
    host: HostServer, client: Endpoint, header: Any, sent: list[pa.RecordBatch], word: bytes
) -> None:
    run = next_run(client)
    if isinstance(header, dict) and header.get("run") == 0:
        header = header | {"run": run}
    with bounded():
        try:
            converse(client, header, sent, word)
        except HostLostError as lost:
            raise AssertionError(f"a bad message is taken for a lost host: {lost}") from lost
        except PenstockError as refused:
            must_be_clear(refused)
    assert client.call("memory", SHORT_MS)["rss"]


WRONG = [
    {"k": pa.array(["a", "b"]), "v": pa.array([1, 2])},
    {"k": pa.array([1, 2]), "v": pa.array(["a", "b"])},
    {"k": pa.array([1, 2]), "v": pa.array([[1], [2, 3]])},
    {"k": pa.array([1.5, 2.5]), "v": pa.array([1, 2])},
    {"k": pa.array([1, 2], pa.int8()), "v": pa.array([1, 2])},
    {"k": pa.array([1, 2]), "v": pa.array([1.5, 2.5])},
    {"v": pa.array([1, 2])},
    {"__key": pa.array([b"x", b"yz"]), "sum(v)": pa.array([1, 2])},
    {"__key": pa.array([1, 2]), "sum(v)": pa.array([1.5, 2])},
    {"__key": pa.array([1, 2])},
]


@pytest.mark.parametrize("columns", WRONG, ids=range(len(WRONG)))
@pytest.mark.parametrize("kind", ["rows", "partials"])
def test_batches_of_another_step_are_refused(
    client: Endpoint, columns: dict[str, pa.Array], kind: str
) -> None:
    header = HEADER | {"run": next_run(client)}
    batch = pa.RecordBatch.from_pydict(columns)
    word = codec.encode(CLOSE | {"kind": kind, "records": batch.num_rows})
    with pytest.raises(ProtocolError, match="same"):
        converse(client, header, [batch], word)


@fuzz(60)
@given(st.builds(mutated, st.just(TICKET), plain | numbers | scalars, st.integers(0, 6)) | plain)
@example(TICKET | {"slots": []})
@example(TICKET | {"slots": [10**6]})
@example(TICKET | {"kind": "due", "limits": {"nothing": 1}})
@example(TICKET | {"kind": "due", "slots": [-5]})
@example(TICKET | {"kind": "keys"})
@example(TICKET | {"kind": "keys", "keys": "AAAA"})
def test_tickets(host: HostServer, client: Endpoint, ticket: Any) -> None:
    with bounded():
        try:
            with client.get(json.dumps(ticket).encode(), SHORT_MS) as stream:
                for _ in stream:
                    pass
        except HostLostError as lost:
            raise AssertionError(f"a bad ticket is taken for a lost host: {lost}") from lost
        except PenstockError as refused:
            must_be_clear(refused)
    assert client.call("memory", SHORT_MS)["rss"]

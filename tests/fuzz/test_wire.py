"""Messages to the registry and to hosts, live streams too: of wrong shape, out of range, cut off, or from a
stranger."""

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
from penstock.errors import HostLostError, PenstockError, ProtocolError, from_wire
from penstock.host.main import HostOrder, HostTask, TaskOrder
from penstock.host.server import HostServer
from penstock.operators.operator import EpochTime
from penstock.plan.assignment import Assignment
from penstock.wire.access import Access
from penstock.wire.addresses import LOOPBACK
from penstock.wire.flight import Endpoint, TokenServer
from penstock.wire.live import (
    Back,
    CheckpointMessage,
    Chunk,
    Frame,
    Handing,
    Message,
    Reroute,
    StreamHeader,
    Time,
    pack,
)
from penstock.wire.messages import ChannelHeader, Close, CopyTicket
from tests.fuzz.fuzzing import bounded, fuzz, must_be_clear, mutated, numbers, plain, scalars
from tests.trials.cluster import SETTINGS
from tests.trials.ledger import SLOTS
from tests.trials.trial import FLOWS

FLOW = FLOWS["sums"][0]
STEP = FLOW.keyed[0]
TOKEN = "token"
ACCESS = Access(TOKEN)
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
        (HostOrder(f"{STEP.id}/0", STEP),), FLOW, store, "grpc://127.0.0.1:1", ACCESS, True, SOON
    )
    task = HostTask(order, LOOPBACK, lambda: None, None)
    yield task.servers[0]
    task.end()
    task.shutdown()


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with Registry(LOOPBACK, ACCESS) as made:
        made.expect(0, 0, lambda seen: None)
        yield made


@pytest.fixture
def client(host: HostServer) -> Iterator[Endpoint]:
    """Of a host that has all slots."""
    made = Endpoint(host.location, ACCESS)
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


# Frames of live streams

TOTALS = pa.RecordBatch.from_pydict({"__key": pa.array([b"x"]), "sum(v)": pa.array([1])})
CHUNK = codec.to_plain(Frame(chunk=Chunk(0, "rows")))
FRAMES = [
    CHUNK,
    codec.to_plain(Frame(chunk=Chunk(1, "partials"))),
    codec.to_plain(Frame(time=Time(5, idle=True))),
    codec.to_plain(Frame(message=Message(checkpoint=CheckpointMessage(0, 0, -1)))),
    codec.to_plain(
        Frame(message=Message(reroute=Reroute(0, STEP.id, (Handing((0, 1), "a", "", "b", ""),))))
    ),
    codec.to_plain(Frame(leave=True)),
]


def damaged(body: bytes, at: int, byte: int, kept: int) -> bytes:
    """Another byte in one place, and the end cut off."""
    at %= len(body)
    return (body[:at] + bytes([byte]) + body[at + 1 :])[: max(len(body) - kept, 1)]


frames = st.builds(mutated, st.sampled_from(FRAMES), plain | numbers, st.integers(0, 12)).map(
    codec.encode
)
live_frames = st.one_of(
    st.tuples(frames, st.none() | batches),
    st.tuples(st.binary(min_size=1, max_size=20), st.none() | batches),
    st.builds(
        lambda frame, batch, *damage: (damaged(pack(frame, batch), *damage), None),
        frames | st.just(codec.encode(CHUNK)),
        batches | st.just(TOTALS),
        st.integers(0, 2_000),
        st.integers(0, 255),
        st.just(0) | st.integers(0, 400),
    ),
)


def stream(client: Endpoint, run: int, sent: list[tuple[bytes, pa.RecordBatch | None]]) -> None:
    """A live stream as it is, of the only courier, and what the host says of it."""
    header = StreamHeader(STEP.id, run, 0, 1)
    with client.exchange(codec.encode(header), SHORT_MS) as (writer, reader):
        schema: pa.Schema | None = None
        for metadata, batch in sent:
            if batch is None:
                writer.write_metadata(metadata)
            elif schema is None or batch.schema.equals(schema):
                if schema is None:
                    writer.begin(batch.schema)
                schema = batch.schema
                writer.write_with_metadata(batch, metadata)
        writer.write_metadata(codec.encode(Frame(leave=True)))
        writer.done_writing()
        for chunk in reader:
            if chunk.app_metadata is not None:
                back = codec.decode(chunk.app_metadata.to_pybytes(), Back)
                if back.error is not None:
                    raise from_wire(back.error)


@fuzz(150)
@given(st.lists(live_frames, max_size=3))
@example([(codec.encode(CHUNK), ROWS), (pack(codec.encode(CHUNK), TOTALS), None)])
@example([(pack(codec.encode(CHUNK), ROWS), ROWS)])
@example([(pack(codec.encode(FRAMES[2]), ROWS), None)])
@example([(codec.encode(CHUNK) + b"\n", None)])
def test_frames_of_a_live_stream(
    host: HostServer, client: Endpoint, sent: list[tuple[bytes, pa.RecordBatch | None]]
) -> None:
    run = next_run(client)
    client.call("join", SHORT_MS, run=run, couriers=1)
    with bounded():
        try:
            stream(client, run, sent)
        except HostLostError as lost:
            raise AssertionError(f"a bad frame is taken for a lost host: {lost}") from lost
        except PenstockError as refused:
            must_be_clear(refused)
    assert client.call("memory", SHORT_MS)["rss"]


def test_chunks_of_two_kinds_go_on_one_stream(client: Endpoint) -> None:
    sender = STEP.plan.sender(EpochTime(0, 0), two_stage=True)
    assert not list(sender.add(0, ROWS))
    kind, (partials,) = sender.finish()
    run = next_run(client)
    client.call("join", SHORT_MS, run=run, couriers=1)
    packed = pack(codec.encode(Frame(chunk=Chunk(1, kind))), partials.batch)
    stream(client, run, [(codec.encode(CHUNK), ROWS), (packed, None), (packed, None)])

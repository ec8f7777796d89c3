"""What leaves a process comes back as it was; what is damaged is refused with a hint."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import codec
from penstock.control.journal.entry import Entry
from penstock.errors import PenstockError, ProtocolError
from penstock.model import DeadLetter, HostId, StepId
from penstock.operators.operator import EpochTime
from penstock.plan.epoch import EpochPlan, Offload, RouteTable, StepRoutes
from penstock.plan.reflex import Reflex
from penstock.state.store.manifest import (
    DeltaRef,
    Layout,
    Manifest,
    SegmentRef,
    StepLayout,
    checked,
    from_checked,
)
from penstock.wire.messages import ChannelHeader, CopyTicket

Array = npt.NDArray[Any]

_REFLEX = Reflex(800.0, 600.0, 300.0, 0.1, 8, (0.5, 0.5))
_OFFLOAD = Offload(np.array([0.0, 0.3, 1.0]), 4, 800, (3, 1), _REFLEX)
_STEP = StepRoutes(
    StepId("sum"),
    RouteTable.even([HostId("sum/0"), HostId("sum/1")], 3),
    ("grpc://a:1", "grpc://b:2"),
    EpochTime(3, 1_000, watermark_ms=900),
    (2,),
    offload=_OFFLOAD,
)
PLAN = EpochPlan(3, 1, 2, (_STEP,), "grpc://d:1", "there", (("map-1", _OFFLOAD),), ("map-1",))
HEADER = ChannelHeader.of_chain(PLAN, 1, 17, keep_late=True)
MANIFEST = Manifest(
    7, 1, 5, "layouts/5-a.json", (DeltaRef("sum", "sum/0", "deltas/7", 3, 512, 99, "88"),),
    {"sum": json.loads(codec.encode(_STEP.routes))}, {"sum": None}, 4, 123, {}, [[0, "p1", 900, 4_000]],
)  # fmt: skip
RUN = SegmentRef("sum", "runs/5", 40, 4_096, 77, "c4", 3, 5)
LAYOUT = Layout(5, "a", {"sum": StepLayout({2: RUN}, (RUN,))})
ENTRY = Entry(12.5, 7, "sum", "decided", "é – “x”\n", {"hosts": [{"rate": 1.5, "slots": None}]})


@dataclass(frozen=True)
class Packed:
    """One array, of the type that the wire names."""

    numbers: npt.NDArray[np.float64]


@pytest.mark.parametrize(
    "value", [PLAN, HEADER, MANIFEST, LAYOUT, ENTRY], ids=lambda v: type(v).__name__
)
def test_a_value_comes_back_as_it_was(value: object) -> None:
    text = codec.encode(value)
    for copy in (codec.decode(text, type(value)), codec.from_plain(json.loads(text), type(value))):
        assert codec.encode(copy) == text
        assert repr(copy) == repr(value)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # a signalling nan
@given(
    st.sampled_from(["<i4", "<i8", "<u8", "<f4", "<f8", ">i4", "|u1", "|b1"]),
    st.binary(max_size=64),
)
def test_an_array_keeps_every_bit(dtype: str, data: bytes) -> None:
    data = bytes(byte % 2 for byte in data) if dtype == "|b1" else data
    array = np.frombuffer(data[: len(data) // 8 * 8], dtype)
    copy = codec.decode(codec.encode({"numbers": array}), Packed).numbers
    assert copy.dtype == np.float64
    assert np.array_equal(copy, array.astype(np.float64), equal_nan=True)
    assert np.array_equal(np.signbit(copy), np.signbit(array.astype(np.float64)))


@pytest.mark.parametrize(
    "keys", [pa.array(["a", None, "é"]), pa.array([], pa.int64()), pa.array([[1, 2], []])]
)
def test_a_ticket_carries_keys(keys: pa.Array) -> None:
    ticket = CopyTicket("keys", 7, keys=keys)
    copy = codec.decode(codec.encode(ticket), CopyTicket)
    assert copy.keys is not None
    assert copy.keys.equals(keys)
    assert codec.decode(codec.encode(CopyTicket("slot", 7, (3,))), CopyTicket).keys is None


def test_half_a_character_in_an_error_hurts_nobody() -> None:
    letter = DeadLetter("sum", "user=1", "{}", "no file \udce9.csv")
    [copy] = codec.decode(codec.encode([letter]), list[DeadLetter])
    assert copy.error == "no file ?.csv"


@dataclass(frozen=True)
class Newer:
    """A value of a release that knows one field more, and one less."""

    rows: int
    added: tuple[str, ...] = ("none",)
    named: dict[int, str] = field(default_factory=dict)
    plain: list[object] = field(default_factory=list)


def test_unknown_keys_are_ignored_and_missing_ones_have_defaults() -> None:
    assert codec.decode('{"rows": 3, "gone": [1]}', Newer) == Newer(3)
    assert codec.decode('{"rows": 3, "plain": [1, {}]}', Newer).plain == [1, {}]
    told = (
        '{"time_ms": 1, "epoch": null, "step": "sum", "event": "resharded", "text": "x", "by": "y"}'
    )
    assert codec.decode(told, Entry) == Entry(1.0, None, "sum", "resharded", "x")
    with pytest.raises(
        ProtocolError, match="not a valid Newer: Object missing required field `rows`"
    ):
        codec.decode("{}", Newer)


@pytest.mark.parametrize("value", [np.array(["a"]), object()])
def test_what_is_no_json_is_a_mistake_of_the_caller(value: object) -> None:
    with pytest.raises(NotImplementedError):
        codec.encode(value)


def _checked(kind: type[Manifest] | type[Layout]) -> Callable[[bytes], object]:
    return lambda data: from_checked(codec.decode(data, dict[str, Any]), "file", kind)


READERS: list[tuple[bytes, Callable[[bytes], object]]] = [
    (codec.encode(PLAN), lambda data: codec.decode(data, EpochPlan)),
    (codec.encode(HEADER), lambda data: codec.decode(data, ChannelHeader)),
    (codec.encode(ENTRY), lambda data: codec.decode(data, Entry)),
    (
        codec.encode(CopyTicket("keys", 7, keys=pa.array(["a"]))),
        lambda data: codec.decode(data, CopyTicket),
    ),
    (checked(MANIFEST), _checked(Manifest)),
    (checked(LAYOUT), _checked(Layout)),
]


@given(st.sampled_from(READERS), st.data())
def test_damaged_bytes_are_refused_with_a_hint(
    reader: tuple[bytes, Callable[[bytes], object]], data: st.DataObject
) -> None:
    good, read = reader
    at = data.draw(st.integers(0, len(good) - 1), "at")
    piece = data.draw(
        st.binary(max_size=3) | st.sampled_from([b"null", b'"', b"[", b"1e999"]), "piece"
    )
    bad = good[:at] + piece + good[at + data.draw(st.integers(0, 4), "gone") :]
    for damaged in (bad, good[:at]):
        refused = _refusal(read, damaged)
        assert refused is None or refused.hint


@pytest.mark.parametrize("reader", READERS)
def test_truncated_bytes_are_refused(reader: tuple[bytes, Callable[[bytes], object]]) -> None:
    good, read = reader
    for length in range(len(good)):
        with pytest.raises(PenstockError, match="not a valid "):
            read(good[:length])


def _refusal(read: Callable[[bytes], object], data: bytes) -> PenstockError | None:
    """None if it is taken: some changes leave the type as it is, such as another number."""
    try:
        read(data)
    except PenstockError as refused:
        return refused
    return None


_AT_ONCE = """
import sys, threading
from dataclasses import make_dataclass
from penstock import codec

sys.setswitchinterval(1e-6)
for _ in range(30):
    inner = make_dataclass("Inner", [(f"f{n}", int | None) for n in range(20)])
    outer = make_dataclass("Outer", [(f"g{n}", inner | None) for n in range(5)])
    plain = {f"g{n}": {f"f{n}": 1 for n in range(20)} for n in range(5)}
    text, together = codec.encode(plain), threading.Barrier(8)

    def read(number):
        together.wait()
        codec.decode(text, outer) if number % 2 else codec.from_plain(plain, outer)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_many_threads_may_read_a_type_for_the_first_time() -> None:
    done = subprocess.run([sys.executable, "-c", _AT_ONCE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or f"it died of signal {-done.returncode}"

"""Encoding of requests and answers."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.offload.backends.backend import WorkerFailed
from penstock.offload.backends.messages import Request, Requests, WorkerAnswer, flow_mark
from penstock.operators.operator import PARTIALS, EpochTime
from tests.offload.backends.flows import counting, doubled, rows, slow_or_wrong

FLOW = counting(doubled)
TIME = EpochTime(3, 17, 5, True)
REQUESTS = Requests.of(FLOW, FLOW.steps, TIME, "3.0.1")
NAME = REQUESTS.name


def test_requests_round_trip() -> None:
    sent = REQUESTS.one(4, [rows(("a", 1)), rows(), rows(("b", 2), ("c", 3))])
    got = Request.from_bytes(sent.to_bytes())
    assert got == sent
    assert (got.id, got.steps, got.time, got.rows) == (f"{NAME}-4", ("map-1", "count-2"), TIME, 3)


def test_answers_round_trip() -> None:
    asked = REQUESTS.one(0, [rows(("a", 1))])
    for late in ((), (rows(("z", 9)),)):
        sent = WorkerAnswer(asked.id, PARTIALS, (rows(("a", 1)), rows(("b", 2))), late)
        assert WorkerAnswer.from_bytes(sent.to_bytes(), asked) == sent
    nothing = WorkerAnswer(asked.id, PARTIALS)
    assert WorkerAnswer.from_bytes(nothing.to_bytes(), asked) == nothing


def test_invalid_answers_are_failures() -> None:
    asked = REQUESTS.one(0, [])
    other = WorkerAnswer(f"{NAME}-1", PARTIALS, (rows(("a", 1)),)).to_bytes()
    own = WorkerAnswer(f"{NAME}-0", PARTIALS, (rows(("a", 1)),), (rows(("a", 1)),)).to_bytes()
    plain = pa.BufferOutputStream()
    with pa.ipc.new_stream(plain, rows().schema):
        pass
    for body in (other, b"", b"no Arrow", own[: len(own) // 2], plain.getvalue().to_pybytes()):
        with pytest.raises(WorkerFailed) as raised:
            WorkerAnswer.from_bytes(body, asked)
        assert raised.value.failure == "failed"


def test_an_answer_to_an_earlier_driver_is_refused() -> None:
    """After a crash the next driver names its requests alike, and they have other rows."""
    before, after = (Requests.of(FLOW, FLOW.steps, TIME, "3.0.1").one(0, []) for _ in range(2))
    stale = WorkerAnswer(before.id, PARTIALS, (rows(("a", 1)),)).to_bytes()
    with pytest.raises(WorkerFailed, match="got the answer to"):
        WorkerAnswer.from_bytes(stale, after)


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.tuples(st.text(max_size=20), st.integers(0, 9)), max_size=20), max_size=4),
    st.integers(2_000, 4_000),
)
def test_rows_are_cut_into_requests_that_fit(
    channels: list[list[tuple[str, int]]], limit: int
) -> None:
    parts = [[rows(*some)] for some in channels]
    cut = REQUESTS.cut(parts, limit)
    assert all(len(request.to_bytes()) <= limit for request in cut)
    assert [request.id for request in cut] == [f"{NAME}-{n}" for n in range(len(cut))]
    again = [row for request in cut for batch in request.batches for row in batch.to_pylist()]
    assert again == [row for [batch] in parts for row in batch.to_pylist()]


def test_a_row_that_is_too_large_for_any_request_gets_its_own() -> None:
    [first, large, last] = REQUESTS.cut([[rows(("a", 1), ("b" * 5_000, 2)), rows(("c", 3))]], 3_000)
    assert [request.rows for request in (first, large, last)] == [1, 1, 1]
    assert len(large.to_bytes()) > 3_000


def test_a_flow_is_known_by_its_mark() -> None:
    assert flow_mark(FLOW) == flow_mark(counting(doubled))
    assert flow_mark(FLOW) != flow_mark(counting(slow_or_wrong))
    other = counting(doubled).steps[:1]
    assert flow_mark(FLOW) != flow_mark(type(FLOW)(FLOW.sources, other))

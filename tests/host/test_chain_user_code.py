"""User code in a host with several workers: workers do not share a processor's attributes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from penstock.operators.operator import EpochTime
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessPlan
from penstock.plan.steps import FlowPlan, KeyedStep, SourcePlan
from penstock.settings import Settings
from tests.host.chain_trials import OneHostChain

pytestmark = pytest.mark.timeout(60)

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


class Notepad(KeyedProcessor):
    """A processor that collects values in an attribute while it works."""

    output_schema = "k long, n long"

    def __init__(self) -> None:
        self.page: list[int] = []

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        self.page.clear()
        for row in rows:
            self.page.append(row.v)
            time.sleep(0.0005)
        yield (key[0], sum(self.page))


def test_workers_do_not_share_what_a_processor_holds() -> None:
    """Calls of one object never overlap, as with one worker."""
    step = KeyedStep("notes", 8, ProcessPlan(SCHEMA, ["k"], Notepad()))
    flow = FlowPlan((SourcePlan(SCHEMA),), (step,), one_host=True)
    rows = pa.RecordBatch.from_pydict({"k": list(range(20)) * 5, "v": [1] * 100}, SCHEMA)
    chain = OneHostChain(flow, Settings(host_cores=4, host_parts=4))
    try:
        answer = chain.channel(chain.header(EpochTime(0, 0), 0, 1), [rows])
    finally:
        chain.end()
    assert {row["n"] for batch in answer.batches for row in batch.to_pylist()} == {5}


class Connected(Notepad):
    """A processor whose first `close` fails."""

    closed: ClassVar[list[str]] = []

    def close(self) -> None:
        self.closed.append("closed")
        if len(self.closed) == 1:
            raise OSError("the line is dead")


def test_all_processors_are_closed_though_one_fails() -> None:
    """One processor fails to close, but the processors of the other parts are closed, too."""
    step = KeyedStep("notes", 8, ProcessPlan(SCHEMA, ["k"], Connected()))
    chain = OneHostChain(
        FlowPlan((SourcePlan(SCHEMA),), (step,), one_host=True), Settings(host_parts=4)
    )
    with pytest.raises(OSError, match="the line is dead"):
        chain.end()
    assert len(Connected.closed) == 4

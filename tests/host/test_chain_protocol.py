"""The protocol of a chain: a channel opens and closes in all steps at once, or in none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ProtocolError, StaleRunError, StepError
from penstock.operators.operator import EpochTime
from penstock.settings import Settings
from tests.host.chain_steps import BOMB, Spec, flow_of
from tests.host.chain_trials import OneHostChain, SerialChain, cut, rows_of

pytestmark = pytest.mark.timeout(60)

SPECS = (
    Spec("timers", ("a",), 3),
    Spec("process", ("b",), 5),
    Spec("sums", ("b",)),
    Spec("global", salt=2),
)
ROWS = [[(n % 5, n % 6, 7 * n + p) for n in range(30)] for p in range(2)]
WORKERS = {
    "alone": Settings(chunk_rows=4),
    "three": Settings(host_cores=3, host_parts=5, chunk_rows=4),
}


@pytest.fixture(params=list(WORKERS.values()), ids=list(WORKERS))
def chain(request: pytest.FixtureRequest) -> Any:
    made = OneHostChain(flow_of(SPECS, one_host=True), request.param)
    yield made
    BOMB.lay(None)
    made.end()


def epoch(chain: OneHostChain, number: int) -> list[Any]:
    """Run both partitions through an epoch, and return their answers."""
    time = EpochTime(number, 1000 * number)
    return [chain.channel(chain.header(time, p, 2), cut(ROWS[p], 11)) for p in range(2)]


def expected(epochs: int) -> list[list[Any]]:
    """Return the expected output of each partition in the last of this many epochs."""
    model = SerialChain(SPECS)
    for number in range(epochs):
        output = model.epoch(ROWS, 1000 * number, range(2))
    return [output[p] for p in range(2)]


def states(chain: OneHostChain) -> list[list[str]]:
    """Return the changes since the last seal, by step."""
    return [sorted(map(repr, delta.to_pylist())) for delta in chain.deltas()]


def test_a_channel_is_closed_once(chain: OneHostChain) -> None:
    time = EpochTime(0, 0)
    first, last = epoch(chain, 0)
    before = states(chain)
    assert chain.channel(chain.header(time, 0, 2), cut(ROWS[0], 30)) is first
    assert chain.channel(chain.header(time, 1, 2), cut(ROWS[1], 30)) is last
    assert states(chain) == before
    with pytest.raises(ProtocolError, match="twice"):
        chain.channel(chain.header(time, 1, 2, attempt=1), cut(ROWS[1], 30))
    chain.seal(0, 2)
    assert chain.channel(chain.header(time, 1, 2), cut(ROWS[1], 30)) is last
    assert [rows_of(answer) for answer in epoch(chain, 1)] == expected(2)
    with pytest.raises(StaleRunError):
        chain.channel(chain.header(time, 1, 2), cut(ROWS[1], 30))


@pytest.mark.parametrize("calls", [0, 1, 17, 31, 45])
def test_a_failed_channel_leaves_no_trace(chain: OneHostChain, calls: int) -> None:
    """User code may fail anywhere in the chain before the epoch's end."""
    epoch(chain, 0)
    chain.seal(0, 2)
    time = EpochTime(1, 1000)
    chain.channel(chain.header(time, 1, 2), cut(ROWS[1], 11))
    chain.roll_back(0)
    chain.channel(chain.header(time, 1, 2), [])
    before = states(chain)
    chain.roll_back(0)
    # This is the first of two channels, so it does not end the epoch.
    for _ in range(3):
        BOMB.lay(calls)
        with pytest.raises(StepError, match="boom"):
            chain.channel(chain.header(time, 0, 2), cut(ROWS[0], 11))
    BOMB.lay(None)
    chain.channel(chain.header(time, 1, 2), [])
    assert states(chain) == before
    chain.roll_back(0)
    assert [rows_of(answer) for answer in epoch(chain, 1)] == expected(2)


@pytest.mark.parametrize("step", range(4))
def test_a_step_that_cannot_close_ends_the_run(
    chain: OneHostChain, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends for all steps, because earlier steps have already emitted their end-of-epoch rows."""
    epoch(chain, 0)
    chain.seal(0, 2)
    time = EpochTime(1, 1000)
    operator = chain.machines[step].operator

    def fail() -> Any:
        raise StepError("it does not close", step="x")

    chain.channel(chain.header(time, 0, 2), cut(ROWS[0], 11))
    with monkeypatch.context() as patched:
        patched.setattr(operator, "close", fail)
        with pytest.raises(StepError, match="does not close"):
            chain.channel(chain.header(time, 1, 2), cut(ROWS[1], 11))
    for partition in range(2):
        with pytest.raises(StaleRunError, match="given up"):
            chain.channel(chain.header(time, partition, 2), cut(ROWS[partition], 11))
    assert not any(states(chain)), "something is left of the run"
    chain.run += 1
    assert [rows_of(answer) for answer in epoch(chain, 1)] == expected(2)


def test_a_channel_for_other_steps_is_refused(chain: OneHostChain) -> None:
    """Nothing was opened for it."""
    header = chain.header(EpochTime(0, 0), 0, 2)
    for other in (replace(header, chained=()), replace(header, step="other")):
        with pytest.raises(ProtocolError, match="cannot take a channel"):
            chain.channel(other, cut(ROWS[0], 11))
    assert [rows_of(answer) for answer in epoch(chain, 0)] == expected(1)


def test_an_epoch_of_no_partitions(chain: OneHostChain) -> None:
    epoch(chain, 0)
    chain.seal(0, 2)
    assert [delta.num_rows for delta in chain.seal(1, 0)] == [0, 0, 0, 0]


def test_each_step_reports_its_rows_and_time(chain: OneHostChain) -> None:
    """The report is the same as if each step had its own host."""
    epoch(chain, 0)
    vitals = [machine.seal(0, 0, 2)[1] for machine in chain.machines]
    assert vitals[0].rows == 60
    assert vitals[3].rows > 0
    assert all(v.useful_ms > 0 for v in vitals)
    assert all(
        v.entries == len(m.operator.table) for v, m in zip(vitals, chain.machines, strict=True)
    )


def test_output_has_the_schema_of_the_flow(chain: OneHostChain) -> None:
    for answer in epoch(chain, 0):
        for batch in answer.batches:
            assert batch.schema.equals(chain.flow.output)
            assert isinstance(batch, pa.RecordBatch)

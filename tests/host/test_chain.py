"""A chain of steps in one host has the same output as one thread that takes one row after the other."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import StaleRunError, StepError
from penstock.operators.operator import EpochTime
from penstock.settings import Settings
from tests.host.chain_models import Values
from tests.host.chain_steps import BOMB, Spec, flow_of
from tests.host.chain_trials import OneHostChain, SerialChain, cut, rows_of, twin

pytestmark = pytest.mark.timeout(120)

KEYS = st.sampled_from([("a",), ("b",), ("a", "b")])
SALTS, SLOTS = st.integers(0, 50), st.sampled_from([1, 3, 8])
SPECS = st.one_of(
    st.builds(Spec, st.just("map"), salt=SALTS),
    st.builds(Spec, st.sampled_from(["process", "batch", "timers"]), KEYS, SALTS, SLOTS),
    st.builds(Spec, st.just("global"), salt=SALTS),
    st.builds(Spec, st.just("distinct"), KEYS, slots=SLOTS),
    st.builds(Spec, st.just("sums"), st.sampled_from([("a",), ("b",)]), slots=SLOTS),
)
CHAINS = st.lists(SPECS, min_size=1, max_size=5).filter(
    lambda specs: any(spec.kind != "map" for spec in specs)
)
ROWS = st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(0, 1000))
EPOCHS = st.lists(
    st.lists(st.lists(ROWS, max_size=40), min_size=1, max_size=3), min_size=1, max_size=4
)
WORKERS = st.builds(
    Settings,
    host_cores=st.integers(1, 4),
    host_parts=st.sampled_from([None, 1, 2, 5]),
    chunk_rows=st.sampled_from([1, 2, 7, 8192]),
    schedule=st.sampled_from(["ct", "lp", "et", "qst"]),
)


def any_chain(
    specs: list[Spec], epochs: Any, workers: Settings, size: int, turns: list[int]
) -> None:
    """Compare a chain with its model, for several partitions whose channels close in the order of `turns`."""
    chain, model = OneHostChain(flow_of(specs, one_host=True), workers), SerialChain(specs)
    try:
        for epoch, parts in enumerate(epochs):
            now_ms, order = 1000 * epoch, [turn for turn in turns if turn < len(parts)]
            expected = model.epoch(parts, now_ms, order)
            for partition in order:
                header = chain.header(EpochTime(epoch, now_ms), partition, len(parts))
                answer = chain.channel(header, cut(parts[partition], size))
                assert rows_of(answer) == expected[partition]
            chain.seal(epoch, len(parts))
    finally:
        chain.end()


def a_failing_chain(
    specs: list[Spec], epochs: Any, workers: Settings, size: int, bombs: list[int]
) -> None:
    """Retry failed channels, or the whole epoch, and check that the output is as without failures."""
    chain, model = OneHostChain(flow_of(specs, one_host=True), workers), SerialChain(specs)
    try:
        for epoch, parts in enumerate(epochs):
            before = twin(model)
            while True:
                try:
                    _epoch(chain, model, epoch, parts, size, bombs)
                    break
                except _GivenUp:
                    model = twin(before)
                    chain.run += 1
            chain.seal(epoch, len(parts))
    finally:
        BOMB.lay(None)
        chain.end()


class _GivenUp(Exception):
    """The run was given up."""


def _epoch(
    chain: OneHostChain,
    model: SerialChain,
    epoch: int,
    parts: Sequence[Sequence[Values]],
    size: int,
    bombs: list[int],
) -> None:
    time = EpochTime(epoch, 1000 * epoch)
    expected = model.epoch(parts, time.now_ms, range(len(parts)))
    for partition, rows in enumerate(parts):
        while True:
            BOMB.lay(bombs.pop() if bombs else None)
            try:
                answer = chain.channel(chain.header(time, partition, len(parts)), cut(rows, size))
            except StepError as failed:
                if "boom" not in str(failed):
                    raise
                continue
            except StaleRunError as over:
                # Only a failure after the end of the epoch gives up the run.
                assert partition == len(parts) - 1
                raise _GivenUp from over
            assert rows_of(answer) == expected[partition]
            break


SIZES, TURNS = st.integers(1, 50), st.permutations(range(3))
BOMBS = st.lists(st.integers(0, 60), max_size=12)


@settings(max_examples=25, derandomize=True, deadline=None, database=None)
@given(specs=CHAINS, epochs=EPOCHS, workers=WORKERS, size=SIZES, turns=TURNS)
def test_any_chain_gives_what_one_thread_gives(**case: Any) -> None:
    any_chain(**case)


@settings(max_examples=25, derandomize=True, deadline=None, database=None)
@given(specs=CHAINS, epochs=EPOCHS, workers=WORKERS, size=SIZES, bombs=BOMBS)
def test_a_channel_that_fails_changes_nothing(**case: Any) -> None:
    a_failing_chain(**case)


@pytest.fixture
def restless() -> Iterator[None]:
    """Make threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


SOAK = settings(
    max_examples=500,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@SOAK
@given(specs=CHAINS, epochs=EPOCHS, workers=WORKERS, size=SIZES, turns=TURNS)
def test_many_chains(restless: None, **case: Any) -> None:
    any_chain(**case)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@SOAK
@given(specs=CHAINS, epochs=EPOCHS, workers=WORKERS, size=SIZES, bombs=BOMBS)
def test_many_chains_that_fail(restless: None, **case: Any) -> None:
    a_failing_chain(**case)

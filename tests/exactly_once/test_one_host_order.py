"""Flows on one host give the same rows in the same order as ordered flows on several hosts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.faults import armed
from penstock.plan.steps import FlowPlan
from penstock.settings import Settings
from tests.host.chain_steps import Spec, flow_of
from tests.host.test_chain import SPECS
from tests.trials.cluster import SETTINGS, MiniCluster, Partitions
from tests.trials.event_ledger import CASES
from tests.trials.one_host_flows import LONG, visits
from tests.trials.one_host_trial import ALONE_PARTED, LINEAR, SHARED, SINGLE, SMALL, THREE, OneHost
from tests.trials.plain_rows import values
from tests.trials.trial import Mishap

# A host's own threads die with an injected fault, as they would with their process.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.timeout(120),
]

EPOCHS = 4
WAYS = {"parted": ALONE_PARTED, "single": SINGLE, "small": SMALL, "three": THREE}
FAULTS = (Mishap("courier.sent", "die"), Mishap("host.applied", "die", 2))

Given = list[list[tuple[Any, ...]]]
Late = list[dict[tuple[str, int], list[str]]]


def ran(
    on: MiniCluster, epochs: Sequence[Partitions], closings: int, mishaps: tuple[Mishap, ...] = ()
) -> tuple[Given, Late]:
    """The rows of each epoch in order, including epochs after the end of input, and the late rows."""
    try:
        for number, parts in enumerate([*epochs, *([[[]]] * closings)]):
            on.now_ms += 1000
            with armed(*(mishap.fault(on) for mishap in mishaps)) as faults:
                closing = max(0, number + 1 - len(epochs))
                on.run_through(parts, lambda: len(faults.fired), closing=closing)
            assert bool(faults.fired) == bool(mishaps)
        late = [
            {where: sorted(map(repr, map(values, rows))) for where, rows in of.items()}
            for of in (on.late.get(epoch, {}) for epoch in range(on.epoch))
        ]
        return [[values(row) for row in on.sink[epoch]] for epoch in range(on.epoch)], late
    finally:
        on.close()


def flow_named(name: str) -> tuple[FlowPlan, list[Partitions], int]:
    """A flow, its epochs, and the number of epochs that it takes to close."""
    if name in LONG:
        flow = LONG[name]
        return flow, [[visits(number)] for number in range(EPOCHS)], max(flow.depths.values())
    case, pick = CASES[name], random.Random(name)
    rows: list[Partitions] = [
        [case.rows(pick, 24, 1000 * n, (1_500, 4_000))] for n in range(EPOCHS)
    ]
    return case.flow, rows, max(case.flow.depths.values()) if case.closes else 0


@cache
def on_plain_hosts(name: str, workers: Settings = SETTINGS) -> tuple[Given, Late]:
    flow, epochs, closings = flow_named(name)
    with TemporaryDirectory() as store:
        on = MiniCluster(replace(flow, ordered=True), store, hosts=2, settings=workers)
        return ran(on, epochs, closings)


def on_one_host(
    name: str, store: str, workers: Settings, mishaps: tuple[Mishap, ...] = ()
) -> tuple[Given, Late]:
    flow, epochs, closings = flow_named(name)
    on = OneHost(replace(flow, one_host=True), store, settings=(workers,))
    return ran(on, epochs, closings, mishaps)


NOW = tuple(LONG)
BY_SENDER = ("top", "groups")
"""Flows whose order may differ. A sender drops rows that cannot be in a top, batch by batch: so the chunks
decide which row of a key a host sees first, and the key's place."""


def shares() -> list[Any]:
    """Parameters (flow, workers): a flow runs with some workers now, and others in longer test runs."""
    params = []
    for number, name in enumerate([*LONG, *LINEAR]):
        for place, (how, workers) in enumerate(WAYS.items()):
            now = place == number % len(WAYS) and name in NOW
            marks = [] if now else [pytest.mark.slow]
            params.append(pytest.param(name, workers, id=f"{name}-{how}", marks=marks))
    return params


@pytest.mark.parametrize(("name", "workers"), shares())
def test_the_same_rows_in_the_same_order(tmp_path: Path, name: str, workers: Settings) -> None:
    given, late = on_one_host(name, str(tmp_path), workers)
    expected, late_too = on_plain_hosts(name)
    if name in BY_SENDER:
        given, expected = ([sorted(rows) for rows in some] for some in (given, expected))
    assert given == expected
    assert late == late_too
    assert sum(map(len, given)) > 2


@pytest.mark.parametrize("name", list(LONG)[1:])
def test_faults_make_no_difference(tmp_path: Path, name: str) -> None:
    assert on_one_host(name, str(tmp_path), SMALL, FAULTS) == on_plain_hosts(name)


@pytest.mark.parametrize(
    "name",
    ["process, global, windows, top"]
    + [pytest.param(name, marks=pytest.mark.slow) for name in CASES],
)
def test_workers_of_plain_hosts_make_no_difference(name: str) -> None:
    assert on_plain_hosts(name, SHARED) == on_plain_hosts(name)


def random_chain(specs: list[Spec], epochs: Sequence[Partitions], workers: Settings) -> None:
    """Assert that several hosts and one host give the same rows in the same order."""
    given = []
    for how, hosts, with_these in (("ordered", 2, SETTINGS), ("one_host", 1, workers)):
        with TemporaryDirectory() as store:
            on = MiniCluster(flow_of(specs, **{how: True}), store, hosts=hosts, settings=with_these)
            given.append(ran(on, epochs, 0)[0])
    assert given[0] == given[1]


CHAINS = st.lists(SPECS, min_size=1, max_size=4).filter(
    lambda specs: any(spec.kind != "map" for spec in specs)
)
ROWS = st.builds(
    lambda a, b, n: {"a": a, "b": b, "n": n},
    st.integers(0, 4),
    st.integers(0, 5),
    st.integers(0, 999),
)
EPOCHS_OF_ONE = st.lists(
    st.lists(st.lists(ROWS, max_size=40), min_size=1, max_size=1), min_size=2, max_size=3
)
WORKERS = st.builds(
    replace,
    st.just(SETTINGS),
    host_cores=st.integers(1, 4),
    host_parts=st.sampled_from([None, 1, 5]),
    chunk_rows=st.sampled_from([1, 7, 8192]),
)


@settings(max_examples=3, derandomize=True, deadline=None, database=None)
@given(specs=CHAINS, epochs=EPOCHS_OF_ONE, workers=WORKERS)
def test_any_chain(**case: Any) -> None:
    random_chain(**case)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=200, deadline=None, database=None)
@given(specs=CHAINS, epochs=EPOCHS_OF_ONE, workers=WORKERS)
def test_many_chains(**case: Any) -> None:
    random_chain(**case)

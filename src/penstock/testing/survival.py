"""The check that faults and moves change nothing: the same epochs, without and with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa

from penstock.faults import FAULT_POINTS, Fault
from penstock.flows.flow import Flow
from penstock.operators.operator import CHANGE
from penstock.testing.flow_tester import FlowTester

_HOSTS = (3, 1, 2)
"""Hosts of each step in the epochs after the first, in turn."""

CRASHES = tuple(
    Fault(point, OSError if point == "store.read" else "kill")
    for point in FAULT_POINTS
    if not point.startswith("sink.")
)
"""A crash at each fault point; at `store.read`, which driver and hosts pass in any thread, an error."""


def assert_survives(
    flow: Flow, epochs: Sequence[Any], faults: Iterable[Fault] = CRASHES, **options: Any
) -> list[str]:
    """Fail where the output of these epochs is not the same with faults and moves as without.

    The flow runs once in peace, then once with each fault: it can happen from the second epoch on, while
    steps are scaled from epoch to epoch. Each of `epochs` is the rows of a source, or a dict of name ->
    rows for several; `options` are those of `FlowTester`. Give two epochs or more, so that there is state
    to lose. Returns the points whose fault happened. A short flow does not pass all of them.
    """
    expected, _ = _output(flow, epochs, None, options)
    fired = []
    for fault in faults:
        output, happened = _output(flow, epochs, fault, options)
        fired += [fault.point] * happened
        for number, (rows, calm) in enumerate(zip(output, expected, strict=True)):
            assert rows == calm, (
                f"with a fault at {fault.point} epoch {number} gave {_difference(rows, calm)}"
            )
    return fired


def _output(
    flow: Flow, epochs: Sequence[Any], fault: Fault | None, options: Mapping[str, Any]
) -> tuple[list[Any], bool]:
    """The output of each epoch and of the end, in a form to compare; whether the fault happened."""
    ordered, output = flow.keeps_order or flow.one_host, []
    with ExitStack() as stack:
        tester = stack.enter_context(FlowTester(flow, **options))
        armed = None
        for number, rows in enumerate(epochs):
            if number and fault is not None:
                armed = armed or stack.enter_context(tester.faults(fault))
                for step in () if flow.one_host else tester.hosts:
                    tester.scale(step, _HOSTS[number % len(_HOSTS)])
            named = isinstance(rows, Mapping)
            output.append(tester.run(**rows) if named else tester.run(rows))
        output.append(tester.finish())
        happened = armed is not None and bool(armed.fired)
    return [table.to_pylist() if ordered else _net(table) for table in output], happened


def _net(table: pa.Table) -> Counter[str]:
    """Row, as text -> how many there are more of it; for changes, after they were taken back."""
    rows: Counter[str] = Counter()
    for row in table.to_pylist():
        rows[repr({n: v for n, v in row.items() if n != CHANGE})] += row.get(CHANGE, 1)
    return Counter({row: count for row, count in rows.items() if count})


def _difference(rows: Any, calm: Any) -> str:
    if isinstance(rows, Counter):
        more, less = rows.copy(), calm.copy()
        more.subtract(calm)
        less.subtract(rows)
        return f"{sorted(+more)[:3]} in place of {sorted(+less)[:3]}"
    return f"{rows[:5]} in place of {calm[:5]}"

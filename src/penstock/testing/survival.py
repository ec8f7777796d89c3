"""A check that faults and moves do not change the output of a flow."""

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
"""Numbers of hosts of each step in the epochs after the first, in turn."""

CRASHES = tuple(
    Fault(point, OSError if point == "store.read" else "kill")
    for point in FAULT_POINTS
    if not point.startswith("sink.")
)
"""A crash at each fault point. `store.read` gets an error instead, since any thread may pass it."""


def assert_survives(
    flow: Flow, epochs: Sequence[Any], faults: Iterable[Fault] = CRASHES, **options: Any
) -> list[str]:
    """Fail if the output of these epochs differs with faults and moves from that without.

    The flow runs once without faults, then once with each fault, which can happen from the second epoch on.
    Steps are scaled between epochs. Each item of `epochs` holds the rows of a source, or a dict of rows by
    source name. `options` are those of `FlowTester`. Use two epochs or more, so that there is state to lose.
    Returns the points whose fault happened. A short flow does not pass all of them.
    """
    expected, _ = _output(flow, epochs, None, options)
    fired = []
    for fault in faults:
        output, happened = _output(flow, epochs, fault, options)
        fired += [fault.point] * happened
        for number, (rows, right) in enumerate(zip(output, expected, strict=True)):
            assert rows == right, (
                f"with a fault at {fault.point}, epoch {number} gave {_difference(rows, right)}"
            )
    return fired


def _output(
    flow: Flow, epochs: Sequence[Any], fault: Fault | None, options: Mapping[str, Any]
) -> tuple[list[Any], bool]:
    """Output of each epoch and of the end, in comparable form, and whether the fault happened."""
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
    """Number of each row, as text. For changes, rows taken back are subtracted."""
    rows: Counter[str] = Counter()
    for row in table.to_pylist():
        rows[repr({n: v for n, v in row.items() if n != CHANGE})] += row.get(CHANGE, 1)
    return Counter({row: count for row, count in rows.items() if count})


def _difference(rows: Any, right: Any) -> str:
    if isinstance(rows, Counter):
        more, less = rows.copy(), right.copy()
        more.subtract(right)
        less.subtract(rows)
        return f"{sorted(+more)[:3]} instead of {sorted(+less)[:3]}"
    return f"{rows[:5]} instead of {right[:5]}"

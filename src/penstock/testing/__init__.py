"""Tools for testing flows: user logic without Spark, whole flows with faults, and trials.

`FlowTester` runs a whole flow over batches of rows, with event time, moves and faults, in milliseconds.
`source` creates a source for such flows. `assert_survives` compares the output of a flow with and without
faults. `ProcessorTester` runs a single processor like a host.

A `Fault` is an action at a named point in the code. For example,
`Settings(faults=(Fault("host.applied", do="kill", where={"epoch": 3, "run": 0}),))` kills a host once, in the
middle of epoch 3. `FAULT_POINTS` lists the points where a process can fail. `TRIAL_POINTS` lists those where
`Pace`, `Delay` and `Uncombined` make one small machine behave like a cluster. `armed` arms faults in the
calling process, which is usually the driver.

`FlowTester` is built from `local_cluster`, `thread_hosts` and `thread_tasks`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.faults import FAULT_POINTS, TRIAL_POINTS, Fault, InjectedFault, armed
from penstock.testing.actions import Delay, Pace, Uncombined

if TYPE_CHECKING:
    from penstock.testing.flow_tester import FlowTester
    from penstock.testing.processor import ProcessorTester
    from penstock.testing.rows_source import source
    from penstock.testing.survival import assert_survives

_HOMES = {
    "FlowTester": "flow_tester",
    "ProcessorTester": "processor",
    "assert_survives": "survival",
    "source": "rows_source",
}
"""Module of each public name. It is imported on first use, because hosts load this package for its actions
and need no driver."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"penstock.testing.{_HOMES[name]}"), name)
    return value


__all__ = [
    "FAULT_POINTS",
    "TRIAL_POINTS",
    "Delay",
    "Fault",
    "FlowTester",
    "InjectedFault",
    "Pace",
    "ProcessorTester",
    "Uncombined",
    "armed",
    "assert_survives",
    "source",
]

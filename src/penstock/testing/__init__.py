"""Tools to test flows with: user logic without Spark, whole flows with faults, and trials.

`FlowTester` runs a whole flow over batches of rows, with event time, moves and faults, in milliseconds;
`source` is a source for such flows. `assert_survives` compares the output of a flow with and without
faults. `ProcessorTester` runs a single processor as a host does.

A `Fault` says what shall happen, and where:
`Settings(faults=(Fault("host.applied", do="kill", where={"epoch": 3, "run": 0}),))` kills a host once,
in the middle of epoch 3. `FAULT_POINTS` lists the places where something can fail, `TRIAL_POINTS` those
where `Pace`, `Delay` and `Uncombined` make a small machine stand for many. `armed` arms faults of the
own process, which is the driver's.

`local_cluster`, `thread_hosts` and `thread_tasks` are what a `FlowTester` is made of.
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
"""Public name -> the module that holds it. It is imported when it is first used: hosts load this package
for actions, and need no driver."""


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

"""Tools to test flows with: user logic without Spark, whole flows with faults, and trials.

`ProcessorTester` runs a processor as a host does. A `Fault` says what shall happen, and where:
`Settings(faults=(Fault("host.applied", do="kill", where={"epoch": 3, "run": 0}),))` kills a host once,
in the middle of epoch 3. `FAULT_POINTS` lists the places where something can fail, `TRIAL_POINTS` those
where `Pace`, `Delay` and `Uncombined` make a small machine stand for many. `armed` arms faults of the
own process, which is the driver's.
"""

from penstock.faults import FAULT_POINTS, TRIAL_POINTS, Fault, InjectedFault, armed
from penstock.testing.actions import Delay, Pace, Uncombined
from penstock.testing.processor import ProcessorTester

__all__ = [
    "FAULT_POINTS",
    "TRIAL_POINTS",
    "Delay",
    "Fault",
    "InjectedFault",
    "Pace",
    "ProcessorTester",
    "Uncombined",
    "armed",
]

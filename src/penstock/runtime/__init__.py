"""The runtime of a host: a chain of operators on many cores, its output that of a serial run.

operators    what is run: stateless, keyed and global operators, and marks
runtime      runs a chain of them with a number of workers
stages       one operator with its worklist and its reorder buffer
worklists    what waits for an operator, and who may take it
reorder      outputs of concurrent workers, sent on in order
scheduler    hands out operators to workers; schedules: which one
crew         threads that rest until there is something to do
atomics      what they share without locks
"""

from penstock.runtime.operators import ChainOperator, Kind, Mark
from penstock.runtime.runtime import Runtime
from penstock.runtime.scheduler import Meter
from penstock.runtime.schedules import Schedule

__all__ = ["ChainOperator", "Kind", "Mark", "Meter", "Runtime", "Schedule"]

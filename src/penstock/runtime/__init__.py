"""The runtime of a host: a chain of operators on many cores, with the output of a serial run.

operators    stateless, keyed and global operators, and marks
runtime      runs a chain of operators with a number of workers
stages       one operator with its worklist and its reorder buffer
worklists    input that waits for an operator, and who may take it
reorder      puts outputs of concurrent workers in order
scheduler    assigns operators to workers; schedules: the heuristics for that
crew         threads that sleep until there is work
atomics      shared memory without locks
"""

from penstock.runtime.operators import ChainOperator, Kind, Mark
from penstock.runtime.runtime import Runtime
from penstock.runtime.scheduler import Meter
from penstock.runtime.schedules import Schedule

__all__ = ["ChainOperator", "Kind", "Mark", "Meter", "Runtime", "Schedule"]

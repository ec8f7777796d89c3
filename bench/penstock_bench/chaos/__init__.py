"""`penstock bench chaos`: a live query and every fault there is, by a seed; the result is the oracle's.

kinds.py      kinds of faults, each a small value that says what it does to a run
schedule.py   which fault comes when: a pure function of the seed
orders.py     how a fault reaches the process that shall have it: a folder that fault points look into
load.py       the rows, the flow and its settings
oracle.py     what the sink must hold, epoch by epoch, and how that differs from what it holds
arena.py      the folder of a run: its checkpoint, its sink, and what its processes tell each other
driver.py     the driver's side: keeps the query going, and starts it again when it has failed
site.py       where faults are done to a run: its processes, found and signalled
bench.py      the supervisor: does the schedule, starts dead drivers again, judges
outcome.py    figures of a run, from what was noted
"""

"""`penstock bench chaos`: runs a query under random faults, and compares its output with an oracle's.

kinds.py      kinds of faults, each a small value that acts on a run
schedule.py   the times of all faults: a pure function of the seed
orders.py     delivers faults to processes: a folder that fault points look into
load.py       the rows, the flow and its settings
oracle.py     the expected content of the sink per epoch, and the difference from the actual one
arena.py      the folder of a run: its checkpoint, its sink, and files its processes communicate by
driver.py     the driver's side: keeps the query running, and restarts it when it fails
site.py       injects faults into a run: finds its processes and signals them
ground.py     the environment of a run: this machine alone
cluster.py    the environment of a run on a cluster with Kafka and an object store
produce.py    the process that sends the rows to Kafka
bench.py      the supervisor: injects the faults, restarts dead drivers, checks the output
outcome.py    metrics of a run, computed from its notes
pictures.py   charts of a report
"""

"""What people see of a query from outside: on a terminal, or as JSON.

running/       a running query, reached through its checkpoint: `penstock ctl`
checkpoint/    a checkpoint, looked into without a query: `penstock state`
demo/          `penstock demo`
cluster/       a Spark cluster on this machine: `penstock cluster`
doctor.py      `penstock doctor`: is this machine fit?
history.py     latency over the last minutes
terminal.py    tables, gauges, bars, colours, spinners
"""

"""Terminal and JSON views of queries and checkpoints, and the commands behind them.

running/       a running query, reached through its checkpoint: `penstock ctl`
checkpoint/    a checkpoint, read without a running query: `penstock state`
cluster/       a Spark cluster on this machine: `penstock cluster`
browser.py     opens a dashboard in a browser
dashboard.py   `penstock dashboard`: a query in a web page
doctor.py      `penstock doctor`: checks whether this machine can run Penstock
history.py     latency over the last minutes
terminal.py    tables, gauges, bars, colours, spinners
"""

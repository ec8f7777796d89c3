"""A standalone Spark cluster on one machine, for trying out and for tests.

cluster.py       a master and workers as processes; stops, kills and starts any of them
background.py    one that goes on in the background: `penstock cluster up`, `down`, `status`
reaper.py        finds all processes of a cluster, and ends them, also when their owner has died
"""

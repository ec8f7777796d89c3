"""A standalone Spark cluster on one machine, for experiments and tests.

cluster.py       a master and workers as processes, each of which can be stopped, killed and started
background.py    a cluster in the background: `penstock cluster up`, `down`, `status`
reaper.py        finds and ends all processes of a cluster, also after their owner has died
"""

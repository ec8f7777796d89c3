"""Hosts, the long-lived tasks that hold state.

main.py                       the function that a host's Spark task runs
server.py                     the shell: a Flight server, the store, threads
staging.py                    memory budget of open channels, and which of them are read
holdings.py, residence.py     a host's state: its table, the slots it owns, and what is missing
machine.py                    a host in micro-batches, as a pure state machine
rounds.py, streams.py         a host in a live run: a pure state machine, and its streams
round_work.py, run_time.py    how rounds of a live run are executed, and when they fire
held_rows.py                  rows of a live run that wait for state
fetch.py, trickle.py          fetch missing state, on demand and in the background
load.py                       how busy a host is, which the background gives way to
copies.py, serve.py           give moved state to the hosts that own it now
parted.py, part_stages.py     one step cut into parts, for several workers
chunks.py                     units of work for those workers
chain.py, chain_*.py          all steps of a flow in one host
compactor.py                  a host's share of a compaction
vitals.py                     metrics that a host reports
rehearsal.py                  calls the compiled kernels before Spark forks its workers
"""

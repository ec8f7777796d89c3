"""Hosts, the long-lived tasks that hold state.

main.py                       what a host's Spark task runs
server.py                     the shell: a Flight server, the store, threads
staging.py                    what open channels hold, and which of them may bring more
holdings.py, residence.py     what a host holds: its table, which slots it owns, and what it lacks
machine.py                    a host in micro-batches, as a pure machine
rounds.py, streams.py         a host in a live run: a pure machine, and the streams around it
fetch.py, trickle.py          bring what is lacking; copies.py, serve.py: what others ask for
parted.py, part_stages.py     a step in parts, for many workers; chunks.py: what goes through them
chain.py, chain_stages.py     all steps of a flow in one host
compactor.py                  a host's part of a compaction
vitals.py                     what a host tells of itself
rehearsal.py                  calls the kernels before Spark forks its workers
"""

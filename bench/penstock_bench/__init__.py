"""Benchmarks: each is run by `penstock bench NAME` and writes one JSON report.

cli.py         the verbs `penstock bench` and `penstock nexmark`, found by entry points
catalog.py     the benchmarks by name: how each is run, its goals, its pictures
report.py      what every report holds: commit, machine, settings, results, ratios; and goals for these
charts.py      pictures as data, and how they are drawn; style.py: how they look
sides.py       what several benchmarks compare with, and how triggers are timed
live/          live queries, and the true latency of every row

pipeline/      throughput, latency and memory beside Spark's own stateful operators
nexmark/       NEXMark's queries beside Spark's own streaming
migration/     latency while state moves, and recovery from a host that is killed
switch/        an SLA kept by scaling and balancing, simulated and live
ordered/       ordered execution on many cores
burst/         bursts taken up by short-lived workers
chaos/         every fault there is on a live query, by a seed, and an oracle for the result
soak/          a query that runs for an hour, and whether anything of it grows
workloads/     what they run on

In a benchmark's folder, `bench.py` runs it and computes its ratios, `pictures.py` says what is drawn,
and `scenarios.py`, `sweeps.py` or `params.py` say as data what is run. Sides that are compared run in
one session, in turns, over the same input and into the same sink.
"""

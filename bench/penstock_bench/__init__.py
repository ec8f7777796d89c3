"""Benchmarks. Each is run by `penstock bench NAME` and writes one JSON report.

cli.py         the commands `penstock bench`, `demo` and `nexmark`, registered as entry points
catalog.py     the benchmarks by name: how to run each, its goals, its charts
report.py      the content of a report: commit, machine, settings, results, ratios; and goals for ratios
charts.py      charts as data, and how they are drawn; style.py: colours and fonts
sides.py       queries that several benchmarks compare with, and the timing of triggers
broker.py      a Kafka broker for benchmarks and tests
network.py     network namespaces as machines, with links that can fail; slow_link.py delays packets
s3_server.py   an S3 server for benchmarks and tests; s3_faults.py: a proxy that injects faults

demo/          `penstock demo`: a story of 90 seconds, shown and checked
pipeline/      throughput, latency and memory, compared with Spark's own stateful operators
nexmark/       NEXMark's queries, compared with Spark's own streaming
migration/     latency while state moves, and recovery after a host is killed
switch/        an SLA kept by scaling and balancing, simulated and live
ordered/       ordered execution on many cores
burst/         bursts carried by short-lived workers
live/          live mode compared with its peers; exact latencies of every row
peers/         the same work in Penstock, Spark, Flink, Bytewax and Pathway
load/          the highest steady rate that keeps an SLA
chaos/         random faults on a running query, and an oracle for its output
soak/          resource usage of a query that runs for an hour
workloads/     the data and queries that benchmarks run on

In a benchmark's folder, `bench.py` runs it and computes its ratios, `pictures.py` defines its charts, and
`scenarios.py`, `sweeps.py` or `params.py` define its runs as data. Compared sides run in one session, in
turn, over the same input and into the same sink.
"""

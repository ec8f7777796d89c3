"""The only folder that runs on Spark.

query.py           `FlowQuery`: a started flow, and the thread that runs it
parts.py           builds the parts of a started flow; live_parts.py does so for a live one
started.py         the options of a started flow, checked and complete
epoch_stream.py    micro-batches as epochs
lasting_jobs.py    hosts and live couriers as Spark jobs; daemon.py forks their Python workers
triggers.py        Spark's own times of triggers, for the phases of epochs
task.py            the epoch plan and partition of a Spark task
listener.py        figures of a query for Spark's `StreamingQueryListener`
session.py         sessions; connector.py: Spark's Kafka connector; maven.py: jars from Maven Central
sinks.py           sinks; delivery.py: exactly-once delivery
inputs.py          source DataFrames; sources.py and arriving.py: Penstock's own sources
control.py         actions of a running query for `penstock ctl`
schema.py          conversion between Spark's and Arrow's schemas; private.py: private APIs of Spark
"""

"""The only place that runs on Spark.

query.py           `FlowQuery`: a started flow, and the thread that runs it
parts.py           what a started flow is made of, put together; live_parts.py: the same of a live one
started.py         what a flow is to be when it is started
epoch_stream.py    micro-batches as epochs
lasting_jobs.py    hosts and live couriers as Spark jobs; daemon.py: what their workers are forked from
task.py            what a task knows of its epoch
session.py         sessions; connector.py: Spark's connector for Kafka; maven.py: jars that they need
sinks.py           where output goes; delivery.py: exactly once
inputs.py          where rows come from, and sources.py, arriving.py
control.py         what a query does when `penstock ctl` asks
schema.py          between Spark's schemas and Arrow's; private.py: what Spark does not promise
"""

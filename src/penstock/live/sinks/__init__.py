"""Sinks: where couriers write a flow's output.

sink.py           the interfaces of sinks and writers, and the ids of rows
kafka.py          a Kafka topic
files.py          one file per courier and epoch, visible when the epoch has passed
function.py       a user's function on batches
transactional.py  makes a sink exactly-once, with an outbox in the checkpoint
"""

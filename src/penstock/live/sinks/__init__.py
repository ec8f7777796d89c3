"""Where couriers write a flow's output.

sink.py      what a sink and its writers are, and the ids of rows
kafka.py     a topic of Kafka
files.py     files of an epoch, visible when it has passed
function.py  a user's function on batches
"""

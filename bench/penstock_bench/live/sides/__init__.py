"""The sides of `penstock bench live`: the same sums, each side a process that runs until it is ended.

Rows {"k", "v", "t"} come from one Kafka topic as JSON; for each change of a key's count and sum
{"k", "n", "s", "t"} goes to another one, with the newest "t" of the key.
"""

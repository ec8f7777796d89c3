"""The sides of `penstock bench live`: the same sums in different engines, each in a process that runs until
ended.

They read JSON rows {"k", "v", "t"} from one Kafka topic. For each change of a key's count and sum they write
{"k", "n", "s", "t"} to another, with the newest "t" of the key.
"""

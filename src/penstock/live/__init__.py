"""Live mode: couriers that run as long as the query, with their sources and sinks.

task        the entry point of a courier's Spark task: a server, heartbeats, one run after the other
server      the commands that the driver can send to a courier
loop        a run: its threads and the queue between them
traffic     the path of rows through a run: sources, junctions, outlets, sink
junction    merges the streams that a step reads, and aligns them at control messages (pure)
reorder     puts the output of an ordered step's hosts back into input order (pure)
outlet      a courier's connection to one keyed step: chunks, routes, event time
backlog     records that wait in a courier because their host is busy (pure)
flights     chunks that hosts have not applied yet
pacing      decides when the next chunk is cut (pure)
clocks      event-time progress of a courier's sources (pure)
meter       record counts and latencies of one step, for control (pure)
notes       what a courier reports about an epoch
busy        CPU time of a run's threads
channels    long-lived streams to hosts
puller      the thread that polls a source
sources/    Kafka, generated rows at a rate, any Python data source of Spark
sinks/      Kafka, files, a function, the driver's memory
"""

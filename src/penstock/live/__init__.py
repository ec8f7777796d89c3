"""Live mode: couriers that run as long as the query, and what they read from and write to.

task        what a courier's Spark task runs: a server, heartbeats, one run after the other
server      what the driver can tell a courier
loop        a run: its threads and the queue between them
traffic     the way of rows through a run: sources, junctions, outlets, sink
junction    what may go on to a step, and what waits behind a control message (pure)
reorder     answers of an ordered step's hosts, in the order of what was sent to them (pure)
outlet      a courier's way to one keyed step: chunks, routes, time
flights     chunks that hosts have not applied
pacing      when the next chunk is cut (pure)
clocks      how far event time has come in a courier's sources (pure)
notes       what is told of an epoch
channels    lasting streams to hosts
puller      the thread of a source
sources/    Kafka, a rate of made-up rows, any Python data source of Spark
sinks/      Kafka, files, a function, the driver's memory
"""

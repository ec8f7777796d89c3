"""Live mode: couriers that run as long as the query, and what they read from and write to.

task        what a courier's Spark task runs: a server, heartbeats, one run after the other
loop        a run: polls, cuts chunks, sends them, takes answers, writes to the sink
junction    what may go on to a step, and what waits behind a control message (pure)
pacing      when the next chunk is cut (pure)
outlet      a courier's way to one keyed step: its streams, routes and chunks
sources/    Kafka, a rate of made-up rows, any Python data source of Spark
sinks/      Kafka, files, a function, the driver's memory
"""

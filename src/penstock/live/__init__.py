"""Live mode: couriers that run as long as the query, and what they read from and write to.

sources/    Kafka, a rate of made-up rows, any Python data source of Spark
sinks/      Kafka, files, a function, the driver's memory
"""

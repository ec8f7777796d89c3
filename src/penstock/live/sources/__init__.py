"""Sources that couriers read by themselves, without Spark.

source.py          the interfaces of sources and readers
formats.py         conversion between message bytes and Arrow: JSON, Avro, Arrow, raw
kafka.py           Kafka topics
rate.py            generated rows at a rate, each derived from its number
python_source.py   Python data sources of Spark, read in a courier
"""

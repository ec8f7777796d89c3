"""What couriers can read by themselves, without Spark.

source.py          what a source, a reader and a poll are
formats.py         between the bytes of messages and Arrow: JSON, Avro, Arrow, raw
kafka.py           topics of Kafka
rate.py            made-up rows at a rate, known by their numbers
python_source.py   Python data sources of Spark, read in a courier
"""

"""NEXMark: an online auction as three streams (people, auctions, bids) and queries over them.

config.py      what is generated: how many events, which seed, rate, shape, hot keys
shapes.py      when the n-th event happens
draws.py       random numbers that follow from a seed and an event's number alone
texts.py       random text, vectorised
rounds.py      which events are of which stream
events.py      the events of any numbers, as Arrow tables
generator.py   the events as files: NDJSON or Parquet
columns.py     the columns of the three streams
times.py       event times, in whatever form a file has them
ndjson.py      NDJSON, read in blocks
streams.py     a stream's file, read batch by batch: the canonical columns and types
merging.py     several streams in one order, by event time
files.py       the events of a folder: as tables, or as a sequence of batches for Spark
"""

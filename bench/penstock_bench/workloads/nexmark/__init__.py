"""NEXMark: an online auction as three streams (people, auctions, bids) and queries over them.

Events
  config.py           what is generated: how many events, which seed, rate, shape, hot keys
  shapes.py           when the n-th event happens
  events.py           the events of any numbers, as Arrow tables, with texts.py for their texts
  generator.py        the events as files: NDJSON or Parquet
  arriving_events.py  the events as they arrive live

Queries
  query.py            what a query is: its SQL, its flow, its forms for live loads
  queries/            the queries
  catalog.py          the queries by name
  oracle.py           their answers by DuckDB
  live.py             queries on events that arrive live, and what they should give

From files to files
  columns.py          the columns of the three streams
  times.py            event times, in whatever form a file has them
  ndjson.py           NDJSON, read in blocks
  streams.py          a stream's file, read batch by batch: the canonical columns and types
  files.py            the events of a folder, in one order: as tables, or as batches for Spark
  run.py              streams files of events through a query to their end
  output.py           the rows that stand at the end, written to a file
"""

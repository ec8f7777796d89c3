"""NEXMark: an online auction as three streams (people, auctions, bids) and queries over them.

Events
  config.py           settings of the generator: number of events, seed, rate, shape, hot keys
  shapes.py           the time of the n-th event
  events.py           the events of any numbers, as Arrow tables, with texts.py for their texts
  generator.py        the events as files: NDJSON or Parquet
  arriving_events.py  the events as they arrive live

Queries
  query.py            the definition of a query: its SQL, its flow, its forms for live loads
  queries/            the queries
  catalog.py          the queries by name
  oracle.py           their answers by DuckDB
  live.py             queries on events that arrive live, and their expected output

From files to files
  columns.py          the columns of the three streams
  times.py            event times in any form that files use
  ndjson.py           a reader of NDJSON in blocks
  streams.py          readers of a stream's file: batches with the canonical columns and types
  files.py            the events of a folder, in one order: as tables, or as batches for Spark
  run.py              runs a query over files of events to their end
  output.py           the final rows, written to a file
"""

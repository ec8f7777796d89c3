"""TPCx-BB: a retailer's store sales and web clicks as streams, and five queries over them.

config.py       what is generated: how many tickets and sessions, which seed, rate, skew; columns
draws.py        what both streams draw from: items that go together, Zipf's law, busy and quiet hours
store_sales.py  the lines of any tickets, as an Arrow table
clicks.py       the clicks of any sessions, as an Arrow table
files.py        a stream as files, which Spark reads one batch after the other
catalog.py      the queries by number: their flows, plans without Spark, and final answers
gathering.py    which items have come together so far, and the first few by number, vectorised
queries/        the queries

Rows of one ticket, and rows of one user, come in order and in one partition of the source, as from
a log that is partitioned by them. That is what the queries that look back (2 and 3) rely on.
"""

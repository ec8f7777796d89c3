"""TPCx-BB: a retailer's store sales and web clicks as streams, and five queries over them.

config.py       settings of the generator (tickets, sessions, seed, rate, skew), and columns
draws.py        random draws of both streams: related items, Zipf's law, busy and quiet hours
store_sales.py  the lines of any tickets, as an Arrow table
clicks.py       the clicks of any sessions, as an Arrow table
files.py        a stream as files, which Spark reads batch by batch
catalog.py      the queries by number: their flows, plans without Spark, and final answers
gathering.py    vectorised sets of items that occur together, and top-N selections
queries/        the queries

Rows of one ticket, and rows of one user, are in order and in one partition of the source, as in a log
that is partitioned by them. Queries 2 and 3, which look back, rely on that.
"""

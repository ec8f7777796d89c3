"""`penstock bench soak`: a query that runs on and on, and whether anything of it grows.

samples.py    what is looked at every few seconds: memory, descriptors, threads, files
bench.py      the query, its load and its upkeep; growth in the second half of the run
pictures.py   all of it over time
"""

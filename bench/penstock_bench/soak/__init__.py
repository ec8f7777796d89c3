"""`penstock bench soak`: runs a query for a long time, and measures whether its resource usage grows.

samples.py    samples of resource usage: memory, descriptors, threads, files
bench.py      the query, its load and its changes; growth in the second half of the run
pictures.py   charts of all samples over time
"""

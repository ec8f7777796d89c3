"""`penstock bench load`: the highest steady rate that keeps an SLA, found by search.

search.py     the search, as a function of whether a rate holds
arrivals.py   rows that arrive at a rate which is changed while a query runs, made by the JVM
sides.py      the queries: Penstock's, and Spark's own with each of its two stores
trial.py      one rate on a running query: was the SLA kept?
bench.py      rounds of searches, and what they come to
pictures.py   success and latency over the rate, for every side
"""

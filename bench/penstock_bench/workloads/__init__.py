"""Workloads for benchmarks, demos and tests.

nexmark/       an online auction: 23 queries, from files and live
tpcx_bb/       a retailer's sales and clicks: five queries
exchange/      a day of limit orders, and the auction that matches them
tally.py       a million keys with state of any size, and updates: the load of the migration benchmark
shaped.py      rows of a key and a number, with any rate and skew
skewed_sum.py  sums over keys, a few of them hot
word_count.py  sentences are split into words, and words counted
draws.py       random numbers that depend only on a seed and an event's number
"""

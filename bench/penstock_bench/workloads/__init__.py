"""Inputs to try Penstock on.

nexmark/       an online auction: 23 queries, from files and live
tpcx_bb/       a retailer's sales and clicks: five queries that look back
exchange/      a day of limit orders, and the auction that matches them
tally.py       a million keys with state of any size, and updates: what migrations are measured with
shaped.py      rows of a key and a number at any rate, as uneven as wanted
skewed_sum.py  sums over keys of which few are hot
word_count.py  sentences, cut into words that are counted
draws.py       random numbers that follow from a seed and a number alone
"""

"""The queries, each with its SQL, its flow and its forms for live loads.

stateless.py   q0, q1, q2, q10, q13, q14, q21, q22: a row in, a row out or none
auctions.py    q3, q4, q6, q9, q20: bids and people joined with auctions
windows.py     q5, q7, q8, q11, q12: by windows of time
counts.py      q15, q16, q17, q18, q19: counts by day, newest and highest bids
"""

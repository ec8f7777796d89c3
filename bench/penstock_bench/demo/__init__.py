"""`penstock demo`: a story of 90 seconds on a stream of NEXMark's bids, shown while it runs and checked.

phases.py      the story: its phases and its load
bids.py        the bids, and the flow; screening.py: the flow's keyed step
run.py         starts the flow, and checks its answer at the end
telling.py     tells the story in the terminal while it happens, and kills the host
display.py     the panel and the lines with its figures
verdict.py     what became of the SLA, the hosts and the kill; exit codes
check.py       the answer, compared with DuckDB's
"""

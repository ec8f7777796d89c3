"""Windows of time: tumbling, hopping and sessions, and aggregates of them.

windows.py           what a window is, and which ones a time is in
row_windows.py       windows, plans and senders of steps that keep rows (`top`, `distinct`)
plan.py              the plan of aggregates in windows
sender.py            the courier's side; pane_combiner.py: rows combined by key and pane
step.py              tumbling and hopping windows on a host; session_step.py: sessions
kernels.py           compiled loops
"""

"""Time windows: tumbling, hopping and sessions, and aggregates in them.

windows.py           the definition of windows, and the windows of a time
row_windows.py       windows, plans and senders of steps that keep rows (`top`, `distinct`)
plan.py              the plan of aggregates in windows
sender.py            the courier's side; pane_combiner.py: rows combined by key and pane
step.py              tumbling and hopping windows on a host; session_step.py: sessions
kernels.py           compiled loops
"""

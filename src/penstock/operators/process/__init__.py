"""Processors: users' own logic per key, with state and timers.

processor.py       what a user writes
step.py            the plan and the operator
calls.py           one call at a time, undone if it fails, and what is told of a failure
key_calls.py, batch_calls.py, timer_calls.py    calls for rows of a key, rows of a slot, timers
"""

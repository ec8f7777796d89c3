"""Processors: user code per key, with state and timers.

processor.py       the base class of user code
step.py            the plan and the operator
calls.py           single calls, undone if they fail, and the errors and dead letters of failed calls
key_calls.py, batch_calls.py, timer_calls.py    calls for rows of a key, rows of a slot, timers
"""

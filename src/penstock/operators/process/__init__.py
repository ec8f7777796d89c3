"""Processors: user code per key, with state and timers.

processor.py       the base class of user code
step.py            the plan and the operator
calls.py           single calls, undone if they fail, and the errors and dead letters of failed calls
partials.py        processors that merge: partial states, their merging, and `handle_merged`
key_calls.py, batch_calls.py, timer_calls.py    calls for rows of a key, rows of slots, timers
compiled.py        `@compiled`, and the kernels of compiled handlers
compiled_calls.py  calls of compiled handlers, for many keys at once
compiled_views.py, compiled_parts.py    what compiled handlers see in place of state and timers
"""

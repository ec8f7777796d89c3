"""Starts Python's resource tracker, which runs as long as the process.

Simulated benchmarks use processes and would start it. It is started here, so that no test seems to leave it
behind.
"""

from __future__ import annotations

from multiprocessing import resource_tracker

resource_tracker.ensure_running()

"""Benchmarks simulate in processes of their own, for which Python keeps one more as long as it lives.

It is started here, so that no test seems to leave it behind.
"""

from __future__ import annotations

from multiprocessing import resource_tracker

resource_tracker.ensure_running()

"""Finds and ends all processes of a cluster, by a mark in their environment, which child processes inherit.

A killed worker leaves its executors running, and a killed test leaves the whole cluster. So the owner of a
cluster starts `python -m penstock.console.cluster.reaper MARK`. It waits until its stdin is closed, which
happens when the owner ends, and then kills all processes with the mark.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

import psutil

MARK = "PENSTOCK_CLUSTER"
"""Environment variable that holds a cluster's mark."""
_PATIENCE_S = 20.0
"""Seconds that killed processes may take to end."""


def marked(mark: str) -> list[psutil.Process]:
    """All processes of a cluster, also those whose parents have ended."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                processes.append(process)
    return processes


def end_all(mark: str) -> list[psutil.Process]:
    """Kill every process of a cluster, also those started meanwhile; returns those that have not ended."""
    until = time.monotonic() + _PATIENCE_S
    while (left := marked(mark)) and time.monotonic() < until:
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=1)
    return left


if __name__ == "__main__":
    sys.stdin.read()
    end_all(sys.argv[1])

"""All processes of a cluster, by a mark in their environment, which those that they start inherit.

A worker that is killed leaves its executors behind, and a test that is killed leaves all of it. So whoever
owns a cluster starts `python -m penstock.console.cluster.reaper MARK`, which waits for the end of its
stdin, that is for its owner's end, and then ends what has the mark.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

import psutil

MARK = "PENSTOCK_CLUSTER"
"""The environment variable that holds a cluster's mark."""
_PATIENCE_S = 20.0
"""Seconds that killed processes may take to be gone."""


def marked(mark: str) -> list[psutil.Process]:
    """The processes of a cluster, whatever became of their parents."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def end_all(mark: str) -> list[psutil.Process]:
    """Kill every process of a cluster, also those that are started meanwhile; returns those that stay."""
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

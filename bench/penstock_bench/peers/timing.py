"""Rows per second of an engine that processes a bounded number of rows. Needs only the standard library."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

_STEP = 200_000
_MOST = 8
"""Factor by which the number of rows grows at most, if they take too little time to be measured."""
_TRIES = 4


def rate(
    run: Callable[[int], float], seconds: float, first: int, step: int = _STEP, least: int = 0
) -> dict[str, Any]:
    """Measure `run`, which processes a number of rows and returns the seconds that this took.

    A short run is compared with a long one of about `seconds` more: what both need to start and to stop
    cancels out. The runs before them warm up, and tell how many rows that takes. Numbers of rows are
    multiples of `step`. The short run has `least` rows or more: what the first rows cost cancels out too.

    >>> rate(lambda rows: 20.0 + rows / 1000, 8.0, first=4000, step=1000)["rows_per_second"]
    1000.0
    """
    guess = _guess(run, seconds, first, step)
    short = _multiple(max(guess * seconds / 4, least), step)
    short_s, long = run(short), short + _multiple(guess * seconds, step)
    long_s = run(long)
    if long_s - short_s < seconds / 4:  # the guess was far too low
        long = short + _MOST * (long - short)
        long_s = run(long)
    took_s = long_s - short_s
    if took_s <= 0:
        raise RuntimeError(f"{long:,} rows took no longer than {short:,}: the machine is too busy")
    return {
        "rows": long - short,
        "seconds": took_s,
        "start_s": max(0.0, short_s - short * took_s / (long - short)),
        "rows_per_second": (long - short) / took_s,
    }


def _guess(run: Callable[[int], float], seconds: float, first: int, step: int) -> float:
    """About how many rows per second `run` processes once it has started.

    A start may take longer than all rows. So the number of rows grows until they take a fourth of `seconds`
    more than few rows do.
    """
    start_s, rows = run(step), max(first, 2 * step)
    for _ in range(_TRIES):
        work_s = run(rows) - start_s
        if work_s >= seconds / 4:
            break
        rows = _multiple(rows * min(_MOST, seconds / 2 / max(work_s, 0.01)), step)
    return (rows - step) / max(work_s, seconds / 100)


def _multiple(rows: float, step: int) -> int:
    return max(1, round(rows / step)) * step


def children(module: str, words: list[list[str]]) -> float:
    """Run a module in several processes, one for each list of words; the most seconds that one reports."""
    command = [sys.executable, "-m", module]
    running = [subprocess.Popen([*command, *each], stdout=subprocess.PIPE) for each in words]
    texts = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise RuntimeError(f"a run of {module} failed")
    return max(float(json.loads(text.splitlines()[-1])["seconds"]) for text in texts)


def tell(facts: dict[str, Any]) -> None:
    """Print a result as the last line of the process."""
    print(json.dumps(facts), flush=True)

"""Rows per second of an engine that processes a bounded number of rows. Needs only the standard library."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

_STEP = 200_000


def rate(
    run: Callable[[int], float], seconds: float, first: int, step: int = _STEP
) -> dict[str, Any]:
    """Measure `run`, which processes a number of rows and returns the seconds that this took.

    Two runs warm up. Then a short run is compared with a long one of about `seconds`: what both need to start
    and to stop cancels out. Numbers of rows are multiples of `step`.

    >>> rate(lambda rows: 2.0 + rows / 1000, 8.0, first=4000, step=1000)["rows_per_second"]
    1000.0
    """
    guess = first / run(first)
    warm = _multiple(guess * seconds, step)
    guess = warm / run(warm)
    short = _multiple(guess * seconds / 4, step)
    long = max(_multiple(guess * seconds, step), short + step)
    short_s, long_s = run(short), run(long)
    return {
        "rows": long - short,
        "seconds": long_s - short_s,
        "start_s": max(0.0, short_s - short * (long_s - short_s) / (long - short)),
        "rows_per_second": (long - short) / (long_s - short_s),
    }


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

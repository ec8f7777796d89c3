"""Memory over many epochs: `python -m penstock_bench.pipeline.many_epochs [EPOCHS]`.

It runs the real driver, couriers and two hosts in one process, without Spark, whose triggers would make
20,000 epochs take half an hour. The keys are the same in all epochs. It prints a line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import psutil

from penstock.errors import PenstockError
from penstock_bench.report import Show

_MB = 2**20
_KEYS = 1_000
_SAMPLES = 20
"""Samples of memory, at equal distances."""
_LIMIT_S = 3600.0


def measure(epochs: int, show: Show) -> dict[str, Any]:
    """Run the epochs in a process of their own, and tell how its memory grew."""
    command = [sys.executable, "-m", "penstock_bench.pipeline.many_epochs", str(epochs)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise PenstockError(f"{epochs:,} epochs took more than {_LIMIT_S:.0f} s") from None
    if done.returncode:
        raise PenstockError(f"the run of many epochs failed: {done.stderr.strip()[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    show(f"{epochs:,} epochs without Spark: {found['growth_mb']:+.1f} MB after the first tenth")
    return found


def sampled(run: Callable[[], object], memory_mb: Callable[[], float], epochs: int) -> list[float]:
    """Memory after each twentieth of this many calls of `run`."""
    samples, ran = [], 0
    for part in range(1, _SAMPLES + 1):
        until = epochs * part // _SAMPLES
        for _ in range(until - ran):
            run()
        ran = until
        samples.append(memory_mb())
    return samples


def growth_mb(samples: list[float]) -> float:
    """How much memory grew after the first tenth of the epochs, which fills caches: the median of the last
    quarter less the median of what is between the first tenth and the first quarter.

    A single sample may have a file or a batch in it that is released a moment later.

    >>> growth_mb([10.0, 100.0, *[120.0] * 17, 150.0])
    0.0
    >>> growth_mb([float(n) for n in range(20)])
    14.0
    """
    tenth, quarter = len(samples) // 10, len(samples) // 4
    return median(samples[-quarter:]) - median(samples[tenth:quarter])


def main(epochs: str) -> None:
    """Run the epochs in this process."""
    import numpy as np
    import pyarrow as pa

    import penstock as ps
    from penstock.testing import FlowTester, source

    flow = ps.flow(source("k long, v long")).key_by("k", slots=64).aggregate(s=ps.sum("v"))
    numbers = np.arange(_KEYS)
    batch = pa.record_batch({"k": numbers, "v": numbers})
    me = psutil.Process()
    with FlowTester(flow, hosts=2) as tester:

        def run() -> None:
            tester.run(batch)
            tester.progress.clear()  # the tester keeps all, for tests to read

        # Not unshared memory: that changes whenever another process maps the same libraries.
        samples = sampled(run, lambda: float(me.memory_info().rss / _MB), int(epochs))
    print(json.dumps({"epochs": int(epochs), "mb": samples, "growth_mb": growth_mb(samples)}))


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["20000"]))

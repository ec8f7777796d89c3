"""The best speedup that two cores give on this machine: the same computation on independent threads,
without the runtime."""

from __future__ import annotations

import threading
import time

from penstock_bench.ordered.chains import Matrices, matrices
from penstock_bench.ordered.trials import line
from penstock_bench.report import Result, Show

RECORDS, TIMES = 32, 8


def rate(threads: int, seconds: float) -> float:
    """Records per second of all threads together."""
    cost, values = Matrices(TIMES), matrices(RECORDS)
    done = [0] * threads
    until = time.perf_counter() + seconds

    def work(thread: int) -> None:
        while time.perf_counter() < until:
            cost.spend(RECORDS, values)
            done[thread] += RECORDS

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(done) / (time.perf_counter() - began)


def measure(rounds: int, seconds: float, show: Show) -> list[Result]:
    """Measure one thread and two, in turn."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    for number in range(rounds):
        for threads in (1, 2) if number % 2 == 0 else (2, 1):
            rates[threads].append(rate(threads, seconds))
    results = [{"workers": threads, "records_per_s": each} for threads, each in rates.items()]
    for result in results:
        show(line("limit", result))
    return results

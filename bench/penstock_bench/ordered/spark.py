"""The overhead of `flow.ordered()` in a whole flow on Spark: two hosts, durability on, the `noop` sink.

The sides take turns, each as a query of its own over the same rows. The measure is the time from one
trigger to the next, as in `penstock bench pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

import penstock as ps
from penstock_bench import sides
from penstock_bench.ordered.flow import KEYS, ROWS, SLOTS, Before
from penstock_bench.ordered.trials import line
from penstock_bench.report import Result, Sample, Show
from penstock_bench.sides import Triggers

_STEPS: dict[str, Callable[[ps.KeyedFlow], ps.Flow]] = {
    "sum": lambda keyed: keyed.aggregate(s=ps.sum("v")),
    "process": lambda keyed: keyed.process(Before()),
}


def measure(rounds: int, warm: int, measured: int, show: Show) -> list[Result]:
    """Rows per second, by step, with order and without, for each round."""
    rates: dict[tuple[str, bool], list[float]] = {
        (step, ordered): [] for step in _STEPS for ordered in (True, False)
    }
    with sides.bench_session() as spark:
        # A JVM gets faster for minutes: the first round warms it up and does not count.
        for number in range(rounds + 1):
            for step, ordered in rates:
                cycles = _cycles_ms(sides.spread(spark, ROWS, KEYS), step, ordered, warm, measured)
                if number:
                    rates[step, ordered].append(ROWS / Sample.of(cycles).median * 1000)
    results: list[Result] = []
    for (step, ordered), per_round in rates.items():
        results.append({"step": step, "ordered": ordered, "records_per_s": per_round})
        show(line("spark", results[-1]))
    return results


def _cycles_ms(rows: DataFrame, step: str, ordered: bool, warm: int, measured: int) -> list[float]:
    flow = _STEPS[step](ps.flow(rows).key_by("k", slots=SLOTS))
    with sides.folder(rows.sparkSession) as checkpoint:
        query = (flow.ordered() if ordered else flow).start(
            ps.to("noop"), checkpoint=checkpoint, hosts=2
        )
        try:
            return Triggers(query.spark_query()).cycles_ms(warm, measured)
        finally:
            query.stop()

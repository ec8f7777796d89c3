"""`penstock bench load`: the highest steady rate at which the average latency is at most 1 s in 99 % of 1 s
windows.

Penstock is compared with Spark's own engine. Each search changes the rate of one running query. It first
climbs in short trials, which also warm up the JVM, and then continues with long trials from there. Sides
take turns. In the rounds after the first, Spark uses the better of its two stores.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock.errors import PenstockError
from penstock.model import SLA
from penstock_bench import sides
from penstock_bench.load.arrivals import Arrivals
from penstock_bench.load.search import Bounds, highest
from penstock_bench.load.sides import KEYS, PENSTOCK, QUERIES, SIDES, STORES, WAYS, Start
from penstock_bench.load.trial import REST, SUCCESS, LoadedQuery, RateTrial, Spell, plain
from penstock_bench.report import Goal, Report, Result, Sample, Show

GOALS = {
    "max_rate_vs_native": Goal(at_least=2.0),
    "max_rate_q5_vs_native": Goal(at_least=2.0),
}
_RATIOS = {"sum": "max_rate_vs_native", "q5": "max_rate_q5_vs_native"}
_CORES = 9
"""Task slots: for the hosts of q5's two steps, and for couriers."""
_STARTS = 3
_LEAST, _MOST = 5_000.0, 20_000_000.0


@dataclass(frozen=True)
class Effort:
    """Time limits of a search."""

    trial: Spell
    search_s: float
    """Seconds after which the search ends with its best rate so far, including the warm-up."""


_SLA = SLA(latency_ms=1000, window_ms=1000)
_CLIMB = Spell(settle_s=1.0, seconds=2.0)
_SUM = Effort(Spell(settle_s=4.0, seconds=10.0), search_s=80.0)
# Windows of 10 s must have filled up at the new rate.
_Q5 = Effort(Spell(settle_s=9.0, seconds=10.0), search_s=120.0)
_SHORT = Effort(Spell(settle_s=1.0, seconds=3.0), search_s=10.0)


@dataclass(frozen=True)
class LoadScale:
    """Size of the benchmark."""

    sla: SLA = _SLA
    rounds: int = 2
    warm_s: float = 25.0
    """Seconds of load before a search of the first round; half of that in later ones."""
    climb: Spell = _CLIMB
    sum: Effort = _SUM
    q5: Effort = _Q5
    factor: float = 1.25
    within: float = 0.07
    start: float = 100_000.0
    """Rows per second at which the first climb begins."""

    def effort(self, query: str) -> Effort:
        return self.q5 if query == "q5" else self.sum


FULL = LoadScale()
QUICK = LoadScale(
    rounds=1,
    warm_s=0.0,
    climb=Spell(settle_s=0.5, seconds=1.0),
    sum=_SHORT,
    q5=_SHORT,
    factor=1.4,
    within=0.4,
)


def run(show: Show, quick: bool = False) -> Report:
    """Run all searches, which takes at most 20 minutes, or two minutes when quick."""
    scale = QUICK if quick else FULL
    show("starting Spark")
    more = {
        "spark.sql.shuffle.partitions": str(WAYS),
        # Enough for all triggers of a trial and those before it.
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        # Spark's default store keeps all state in the JVM's memory.
        "spark.driver.memory": "4g",
    }
    with sides.bench_session(_CORES, more) as spark:
        searches = [
            search for query in QUERIES for search in Rounds(spark, query, scale, show).searches()
        ]
    return report(searches, scale)


@dataclass(frozen=True)
class Search:
    """The result of one search, with all its trials."""

    query: str
    side: str
    max_rate: float
    trials: tuple[RateTrial, ...]


class Rounds:
    """The searches of one query, for all sides."""

    def __init__(self, spark: SparkSession, query: str, scale: LoadScale, show: Show) -> None:
        self._spark, self._query, self._scale, self._show = spark, query, scale, show

    def searches(self) -> list[Search]:
        """Run all searches, in order."""
        searches: list[Search] = []
        compete = list(QUERIES[self._query])
        for number in range(self._scale.rounds):
            warm_s = self._scale.warm_s / (2 if number else 1)
            # Later sides find a warmer JVM, so the order alternates.
            for side in compete[:: -1 if number % 2 else 1]:
                before = max(max_rates(searches, side), default=0.0)
                searches.append(self._search(side, before, warm_s))
            compete = [PENSTOCK, better_store(searches)]
        return searches

    def _search(self, side: str, before: float, warm_s: float) -> Search:
        """Search once. `before` is the result of an earlier search, or 0 if there was none."""
        scale, trials = self._scale, list[RateTrial]()
        effort = scale.effort(self._query)
        with loaded(self._spark, QUERIES[self._query][side], scale.sla) as query:

            def tried(rate: float, spell: Spell) -> RateTrial:
                trial = query.try_rate(rate, spell)
                self._show(f"{self._query:>3} {side:<14} {_line(trial)}")
                return trial

            def holds(rate: float) -> bool:
                trials.append(tried(rate, effort.trial))
                if trials[-1].near:
                    trials.append(tried(rate, effort.trial))
                return trials[-1].holds

            def enough() -> bool:
                return time.monotonic() - began > effort.search_s

            began = time.monotonic()
            climb = Bounds(_LEAST, _MOST, factor=2.0, within=1.0)
            first = max(scale.start, before / 2)
            rate = highest(lambda rate: tried(rate, scale.climb).holds, first, climb, enough)
            query.hold(max(rate, _LEAST), warm_s - (time.monotonic() - began))
            bounds = Bounds(_LEAST, _MOST, scale.factor, scale.within)
            max_rate = highest(holds, before or rate or scale.start, bounds, enough)
        self._show(f"{self._query:>3} {side:<14} holds {max_rate:,.0f} rows/s")
        return Search(self._query, side, max_rate, tuple(trials))


@contextmanager
def loaded(spark: SparkSession, start: Start, sla: SLA) -> Iterator[LoadedQuery]:
    """A running query of a side, at a very low rate. The start is retried, since Spark may fail to start a
    source."""
    with ExitStack() as stack:
        for attempt in range(_STARTS):
            try:
                query = stack.enter_context(_started(spark, start, sla))
                break
            except PenstockError:
                if attempt + 1 == _STARTS:
                    raise
        yield query


@contextmanager
def _started(spark: SparkSession, start: Start, sla: SLA) -> Iterator[LoadedQuery]:
    with sides.folder(spark) as place:
        arrivals = Arrivals(Path(place, "rates"), REST)
        with start(arrivals.ticks(spark, WAYS)) as query:
            yield LoadedQuery(query, arrivals, sla)


def max_rates(searches: Iterable[Search], side: str) -> list[float]:
    """Results of a side's searches, by round, in rows per second."""
    return [search.max_rate for search in searches if search.side == side]


def better_store(searches: Sequence[Search]) -> str:
    """Spark's side with the higher rate, by the median of its rounds."""
    measured = [side for side in STORES if max_rates(searches, side)]
    return max(measured, key=lambda side: statistics.median(max_rates(searches, side)))


def report(searches: Sequence[Search], scale: LoadScale) -> Report:
    """The report of all searches."""
    settings = asdict(scale) | {
        "keys": KEYS,
        "hosts": WAYS,
        "partitions": WAYS,
        "sink": "noop",
        "success": SUCCESS,
    }
    results = {
        query: _results([search for search in searches if search.query == query])
        for query in QUERIES
    }
    return Report("load", settings, results, ratios(results))


def _results(searches: Sequence[Search]) -> Result:
    result: Result = {"better_store": better_store(searches)}
    for side in SIDES:
        rates = max_rates(searches, side)
        trials = [trial for search in searches if search.side == side for trial in search.trials]
        result[side] = {
            "max_rate": asdict(Sample.of(rates)) | {"rounds": rates},
            "trials": [plain(trial) for trial in trials],
        }
    return result


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """Each query's highest rate divided by that of Spark's own engine with its better store.

    >>> rate = lambda rate: {"max_rate": {"median": rate}}
    >>> sums = {"better_store": "native_hdfs", "penstock": rate(900.0), "native_hdfs": rate(300.0)}
    >>> ratios({"sum": sums})
    {'max_rate_vs_native': 3.0}
    """
    values = {}
    for query, result in results.items():
        ours, theirs = (
            float(result[side]["max_rate"]["median"]) for side in (PENSTOCK, result["better_store"])
        )
        values[_RATIOS[query]] = ours / theirs if theirs else float("nan")
    return values


def _line(trial: RateTrial) -> str:
    mean = "no rows done" if trial.mean_ms is None else f"mean {trial.mean_ms:,.0f} ms"
    verdict = "holds" if trial.holds else "fails"
    return f"{trial.rate:>10,.0f} rows/s {verdict}: success {trial.success:.1%}, {mean}"

"""`penstock bench migration`: the cost of moving state, by strategy, size, share and skew.

A million keys, 4,000 updates per second, four hosts, 64 slots. One query per size of the state keeps
running. Each run lasts ten seconds; after four, some of every host's slots move to the next host. Latency
is from arrival to sink, by the second in which rows arrived. Between runs all slots and their state move
back. At the end, hosts are killed. With `--part`, only some of this is run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from penstock.errors import SettingError
from penstock_bench import sides
from penstock_bench.live.latency import Seconds, per_second
from penstock_bench.migration.query import HOSTS, SLOTS, MovingQuery, moving_query
from penstock_bench.report import Goal, Report, Sample, Show
from penstock_bench.workloads.tally import TallyLoad

KEYS, RATE = 1_000_000, 4_000
SECONDS, MOVE_AT = 10, 4
SIZES = {"50mb": 50, "500mb": 500, "5gb": 5_000}
"""Name of a size -> bytes of payload per key."""
STRATEGIES = ("lazy(0)", "lazy(16)", "all_at_once", "batched(8)", "fluid", "pause")
LAZY, PAUSE = "lazy(0)", "pause"
PARTS = ("moves", "overhead", "recovery", "peak")
"""The first three are all of it. `peak` is the runs at the largest size of which `moves` has two."""
_PEAKS = 3
"""Number of these runs."""

GOALS = {
    "peak_pause_over_lazy_50mb": Goal(at_least=5),
    "peak_pause_over_lazy_500mb": Goal(at_least=30),
    "peak_pause_over_lazy_5gb": Goal(at_least=100),
    "peak_lazy_over_steady_5gb": Goal(at_most=1.5),
    "moved_fraction_lazy": Goal(at_most=0.028),
    "recovery_5gb_over_50mb": Goal(at_most=1.5),
    "steady_overhead_lazy_over_none": Goal(at_most=1.05),
}


@dataclass(frozen=True)
class AskedMove:
    """The parameters of a run."""

    strategy: str
    fraction: float
    skew: float = 0.0


@dataclass(frozen=True)
class Moved:
    """The result of a run."""

    size: str
    strategy: str
    fraction: float
    skew: float
    seconds: Seconds
    steady_ms: float
    """Median of the p99 of each second before the move, in milliseconds."""
    peak_ms: float
    """p99 of the worst second from the move on, in milliseconds."""
    moved_keys: int
    moved_bytes: int
    moved_fraction: float
    """Share of the moved slots' keys whose state was transferred."""
    round_trips: int


@dataclass(frozen=True)
class Killed:
    """The result of killing a host with SIGKILL."""

    size: str
    recovery_ms: float
    """Milliseconds from the kill until the interrupted epoch's output is in the sink."""
    runs: int
    """Number of runs of that epoch."""
    peak_ms: float
    steady_ms: float


@dataclass(frozen=True)
class MigrationScale:
    """Size of the benchmark."""

    sizes: tuple[str, ...] = ("50mb", "500mb", "5gb")
    rounds: int = 2
    fractions: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    skews: tuple[float, ...] = (0.3, 0.6, 0.9)
    kills: int = 3
    parts: tuple[str, ...] = PARTS[:3]

    def of(self, parts: Sequence[str]) -> MigrationScale:
        """Only some parts, at the sizes that they need.

        >>> MigrationScale().of(["recovery"]).sizes
        ('50mb', '5gb')
        """
        if unknown := [name for name in parts if name not in PARTS]:
            raise SettingError(
                f"bench migration has no part {', '.join(unknown)}",
                hint=f"use one of: {', '.join(PARTS)}",
            )
        sizes = self.sizes
        if "moves" not in parts:
            sizes = sizes[-1:] if "recovery" not in parts else tuple({sizes[0]: 0, sizes[-1]: 0})
        return replace(self, sizes=sizes, parts=tuple(parts))

    def moves(self, largest: bool = True) -> Iterator[AskedMove]:
        """All runs at one size. The runs that the ratios use are repeated in every round."""
        if "moves" not in self.parts:
            if "peak" in self.parts and largest:
                yield from [AskedMove(LAZY, 0.5)] * _PEAKS
            return
        for first in (True, *[False] * (self.rounds - 1)):
            for fraction in self.fractions:
                if first or fraction == 0.5:
                    for strategy in STRATEGIES if fraction == 0.5 and first else (LAZY, PAUSE):
                        yield AskedMove(strategy, fraction)
        for skew in self.skews if largest else ():
            yield AskedMove(LAZY, 0.5, skew)


FULL = MigrationScale()
QUICK = MigrationScale(("50mb",), 1, (0.5,), (0.9,), 1)


def run(show: Show, quick: bool = False, part: Sequence[str] = ()) -> Report:
    """Run everything, or some parts. It takes about forty minutes and 8 GB; a few minutes when quick."""
    scale = QUICK if quick else FULL
    scale = scale.of(part) if part else scale
    moved: list[Moved] = []
    killed: list[Killed] = []
    overheads: list[float] = []
    show("starting Spark")
    with sides.bench_session() as spark:
        for size in scale.sizes:
            load = TallyLoad(
                KEYS, RATE, SIZES[size], max(10_000, min(KEYS, 250_000_000 // SIZES[size]))
            )
            show(f"{size}: loading {KEYS:,} keys")
            with moving_query(spark, load) as query:
                query.go_home()
                for move in scale.moves(size == scale.sizes[-1]):
                    one = _moved(query, size, move)
                    moved.append(one)
                    show(_line(one))
                    query.go_home()
                if "overhead" in scale.parts:
                    overheads += _overheads(query, scale.rounds)
                for number in range(scale.kills if "recovery" in scale.parts else 0):
                    last = _killed(query, size, number % HOSTS)
                    killed.append(last)
                    show(f"{size}: host killed: recovered after {last.recovery_ms:.0f} ms")
                    query.go_home()
    return Report(
        "migration",
        settings={
            "keys": KEYS,
            "rate": RATE,
            "hosts": HOSTS,
            "slots": SLOTS,
            "seconds": SECONDS,
            "move_at": MOVE_AT,
            "payload_bytes": SIZES,
            "quick": quick,
            "parts": scale.parts,
        },
        results={
            "moves": [asdict(one) for one in moved],
            "recoveries": [asdict(one) for one in killed],
            "steady_p50_partial_over_complete": asdict(Sample.of(overheads)) if overheads else None,
        },
        ratios=_ratios(moved, killed, overheads),
    )


def _moved(query: MovingQuery, size: str, move: AskedMove) -> Moved:
    query.draw(move.skew)
    query.query.migration = move.strategy
    first = query.now_row()
    query.until(lambda: query.now_row() > first + MOVE_AT * RATE, "the move's second")
    asked_ms = time.time() * 1000
    slots = query.shift(move.fraction)
    last = first + SECONDS * RATE
    query.until(lambda: query.rows() > last, "all rows of the run")
    seconds = per_second(query.delivered(), first, SECONDS, RATE, query.arrival_ms(first))
    costs = [e.migration for e in query.epochs() if e.started_ms >= asked_ms]
    keys = sum(cost.fetched_keys for cost in costs)
    return Moved(
        size,
        move.strategy,
        move.fraction,
        move.skew,
        seconds,
        steady_ms=seconds.steady_ms(MOVE_AT),
        peak_ms=seconds.peak_ms(MOVE_AT),
        moved_keys=keys,
        moved_bytes=sum(cost.fetched_bytes for cost in costs),
        moved_fraction=keys / (KEYS * slots / SLOTS),
        round_trips=sum(cost.fetches for cost in costs),
    )


def _overheads(query: MovingQuery, rounds: int) -> list[float]:
    """p50 with every slot partial divided by p50 with every slot complete, one value per round.

    With all slots complete, the only cost of migration is that a channel checks one flag.
    """
    ratios = []
    for _ in range(rounds):
        complete = _steady_p50(query)
        query.query.migration = LAZY
        query.shift(1.0)
        query.wait_s(3.0)
        partial = _steady_p50(query)
        query.go_home()
        ratios.append(partial / complete)
    return ratios


def _steady_p50(query: MovingQuery) -> float:
    first = query.now_row()
    query.until(lambda: query.rows() > first + SECONDS * RATE, "a quiet stretch")
    seconds = per_second(query.delivered(), first, SECONDS, RATE, query.arrival_ms(first))
    return statistics.median(seconds.p50_ms)


def _killed(query: MovingQuery, size: str, host: int) -> Killed:
    query.query.migration = LAZY
    first = query.now_row()
    query.until(lambda: query.now_row() > first + MOVE_AT * RATE, "the kill's second")
    killed_ms = query.kill_host(host)
    query.until(lambda: query.rows() > first + SECONDS * RATE, "all rows of the run")
    seconds = per_second(query.delivered(), first, SECONDS, RATE, query.arrival_ms(first))
    hit = next(e for e in query.epochs() if e.runs > 1 and e.started_ms + e.sink_ms > killed_ms)
    return Killed(
        size,
        hit.started_ms + hit.sink_ms - killed_ms,
        hit.runs,
        seconds.peak_ms(MOVE_AT),
        seconds.steady_ms(MOVE_AT),
    )


def _ratios(moved: list[Moved], killed: list[Killed], overheads: list[float]) -> dict[str, float]:
    """The ratios that have goals, of those parts that were run."""

    def runs(size: str, strategy: str) -> list[Moved]:
        """All rounds, with half of the keys and no skew."""
        chosen = [m for m in moved if (m.size, m.strategy) == (size, strategy)]
        return [m for m in chosen if (m.fraction, m.skew) == (0.5, 0.0)]

    def median(some: list[Moved], of: str) -> float:
        return statistics.median(float(getattr(m, of)) for m in some)

    ratios = {}
    sizes = list(dict.fromkeys(m.size for m in moved))
    for size in sizes:
        lazy, pause = runs(size, LAZY), runs(size, PAUSE)
        if lazy and pause:
            ratios[f"peak_pause_over_lazy_{size}"] = median(pause, "peak_ms") / median(
                lazy, "peak_ms"
            )
    if sizes:
        lazy = runs(sizes[-1], LAZY)
        steady = median(lazy, "steady_ms")
        ratios[f"peak_lazy_over_steady_{sizes[-1]}"] = median(lazy, "peak_ms") / steady
        ratios["moved_fraction_lazy"] = median(lazy, "moved_fraction")
    recovery: dict[str, list[float]] = {}
    for one in killed:
        recovery.setdefault(one.size, []).append(one.recovery_ms)
    if len(recovery) > 1:
        least, *_, most = recovery
        ratios[f"recovery_{most}_over_{least}"] = statistics.median(
            recovery[most]
        ) / statistics.median(recovery[least])
    if overheads:
        ratios["steady_overhead_lazy_over_none"] = statistics.median(overheads)
    return ratios


def _line(one: Moved) -> str:
    skew = f", zipf {one.skew}" if one.skew else ""
    return (
        f"{one.size}: {one.strategy:<12} {one.fraction:.0%} of the keys{skew}: "
        f"p99 {one.steady_ms:.0f} ms before, worst {one.peak_ms:.0f} ms; "
        f"{one.moved_keys:,} keys ({one.moved_fraction:.1%}), {one.moved_bytes / 1e6:.1f} MB moved"
    )

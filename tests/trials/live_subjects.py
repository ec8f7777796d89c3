"""Flows for live trials, each with matching rows and the result of a batch computation.

A live flow cuts its rows into rounds as it likes, so comparisons must not depend on rounds. They compare the
last value of each key, the net of changes, windows after they close, or the whole history of a key.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.aggregate import aggregates
from penstock.operators.aggregate.aggregates import AggregatePlan
from penstock.operators.join.plan import JoinPlan, Regular
from penstock.operators.operator import CHANGE
from penstock.operators.process.processor import KeyedProcessor
from penstock.operators.process.step import ProcessPlan
from penstock.operators.tagged import INPUT
from penstock.operators.top.distinct import DistinctPlan
from penstock.operators.top.plan import TopPlan
from penstock.operators.window.plan import WindowPlan
from penstock.operators.window.windows import tumbling
from penstock.plan.steps import FlowPlan, KeyedStep, MapStep, SourcePlan
from tests.trials.event_ledger import CASES, DELAY_MS, Case
from tests.trials.event_rows import CLICKS, OFFERS, PAIRS, click, offer, pair, with_offer
from tests.trials.event_twins import Now, StepTwin
from tests.trials.join_twins import RecentTwin
from tests.trials.ledger import OPS, ORDERS, SLOTS, SUMS, Ledger, SumsTwin, _Account
from tests.trials.own_processors import Bells, Histogram, HistogramTwin
from tests.trials.plain_rows import Row, net, plain
from tests.trials.shops import (
    THREE_KEYS,
    TWO_KEYS,
    by_partition,
    in_arrival_order,
    shop_rows,
    unchained,
)
from tests.trials.top_twins import DistinctTwin

KEYS = 12
NEVER_MS = 1 << 40
TTL_MS = 60
"""TTL of a `Diary`'s notes, in milliseconds."""
HOUR_MS = 3_600_000


class Mismatch(AssertionError):
    """The output differs from that of a batch computation."""


@dataclass(frozen=True)
class Subject:
    """A flow, its rows, and the check of its output."""

    flow: FlowPlan
    rows: Callable[[random.Random, int, int], list[Row]]
    """Makes a number of rows with event times up to a time; `INPUT` names the source, if needed."""
    judge: Callable[[list[Row], list[Row]], None]
    """Raises `Mismatch` if the output, in order of delivery, does not match the input rows."""
    pinned: str | None = None
    """Column whose equal values stay in one partition, since the order of a key's rows matters."""
    closes: bool = False
    """Whether rows are emitted as time passes."""


def must_be(output: list[Any], wanted: list[Any]) -> None:
    if output != wanted:
        more, less = Counter(map(repr, output)), Counter(map(repr, wanted))
        raise Mismatch(
            f"{list((more - less).items())[:4]} instead of {list((less - more).items())[:4]}"
        )


# Windows, joins and tops: compared with the models of micro-batches, with all rows in one epoch


def _whole(case: Case) -> Callable[[list[Row], list[Row]], None]:
    def judge(sent: list[Row], output: list[Row]) -> None:
        changing = CHANGE in case.flow.output.names
        twin, left = case.twin(), Counter[tuple[Any, ...]]()
        for closing in range(1 + max(case.flow.depths.values())):
            for row in twin.epoch([] if closing else sent, 0, closing):
                left[row[:-1] if changing else row] += row[-1] if changing else 1
        wanted = sorted(((*row, n) for row, n in left.items() if n), key=repr)
        must_be(net(output if changing else [row | {CHANGE: 1} for row in output]), wanted)

    return judge


def _of_case(case: Case) -> Subject:
    def rows(pick: random.Random, rows: int, now_ms: int) -> list[Row]:
        return case.rows(pick, rows, now_ms, (DELAY_MS,))

    return Subject(case.flow, rows, _whole(case), closes=case.closes)


_TIMED = tuple(SourcePlan(schema, "ts", DELAY_MS) for schema in (CLICKS, OFFERS))


def _recent(how: Any) -> Case:
    """A join without bounds, whose rows are kept for an hour."""
    plan = JoinPlan(CLICKS, OFFERS, (("k", "k"),), how, Regular(HOUR_MS))
    step = KeyedStep("recent", SLOTS, plan, reads=(0, 1))

    def twins() -> dict[str, StepTwin]:
        return {"recent": RecentTwin(HOUR_MS, with_offer, outer=how == "left")}

    return Case(FlowPlan(_TIMED, (step,)), twins, (click, offer))


def _distinct() -> Case:
    step = KeyedStep("distinct", SLOTS, DistinctPlan(PAIRS, ["k", "v"], ttl_ms=HOUR_MS))

    def twins() -> dict[str, StepTwin]:
        return {"distinct": DistinctTwin(HOUR_MS)}

    return Case(FlowPlan((SourcePlan(PAIRS),), (step,)), twins, (pair,))


# Sums: the last value of each key


def _numbers(pick: random.Random, rows: int, now_ms: int) -> list[Row]:
    return [{"k": pick.randrange(KEYS), "v": pick.randrange(100)} for _ in range(rows)]


def newest(output: list[Row], key: str) -> dict[Any, tuple[Any, ...]]:
    """The last output of each key, by its count."""
    last: dict[Any, Row] = {}
    for row in output:
        if row[key] not in last or row["n"] >= last[row[key]]["n"]:
            last[row[key]] = row
    return {name: tuple(row.values()) for name, row in last.items()}


def _sums(sent: list[Row], output: list[Row]) -> None:
    wanted = SumsTwin().epoch(sent, 0)
    must_be(sorted(newest(output, "k").values(), key=repr), wanted)


# A diary: state variables of each kind, a TTL and processing-time timers


class Diary(Ledger):
    """A ledger whose lines have the time of writing and the number of earlier lines."""

    output_schema = "who string, op string, total long, held string, line long, now long"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.get_value_state("total", "n long")
        self.pairs = handle.get_map_state("pairs", "n long", "v long")
        self.pushed = handle.get_list_state("pushed", "v long")
        self.note = handle.get_value_state("note", "v long", ttl=TTL_MS)
        self.lines = handle.get_value_state("lines", "n long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        now = timers.processing_time_ms
        for row in rows:
            if row.op == "alarm":
                self.handle.register_timer(now + 20 * (1 + row.v % 4))
            else:
                self._take(row.op, row.v, now)
            yield (key[0], row.op, self._total(), self._held(), self._line(), now)

    def handle_expired_timer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:
        op, now = f"alarm {expired.expiry_ms}", timers.processing_time_ms
        yield (key[0], op, self._total(), self._held(), self._line(), now)
        self.pushed.clear()

    def _line(self) -> int:
        value = self.lines.get()
        line = 0 if value is None else int(value.n)
        self.lines.update((line + 1,))
        return line


def _orders(pick: random.Random, rows: int, now_ms: int) -> list[Row]:
    made = []
    for _ in range(rows):
        op = pick.choice(OPS)
        made.append({"who": f"who-{pick.randrange(KEYS)}", "op": op, "v": pick.randrange(100)})
    return made


def _diary(sent: list[Row], output: list[Row]) -> None:
    """Assert that every line follows from those before it, at its own time, and that none is missing."""
    lines: dict[str, list[Row]] = defaultdict(list)
    for row in output:
        lines[row["who"]].append(row)
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in sent:
        rows[row["who"]].append(row)
    must_be(sorted(lines), sorted(rows))
    for who, written in lines.items():
        written.sort(key=lambda row: int(row["line"]))
        must_be([row["line"] for row in written], list(range(len(written))))
        account, left, before = _Account(), iter(rows[who]), 0
        for row in written:
            now = row["now"]
            if now < before:
                raise Mismatch(f"{who}: {row} is earlier than the line before it")
            before = now
            if account.note is not None and account.note[1] + TTL_MS <= now:
                account.note = None
            if row["op"].startswith("alarm "):
                due = int(row["op"].split()[1])
                if due not in account.timers or due > now:
                    raise Mismatch(f"{who}: {row} without a timer, of {account.timers}")
                account.timers.remove(due)
                must_be([(row["total"], row["held"])], [account.held()])
                account.pushed = []
                continue
            read = next(left, None)
            if read is None or read["op"] != row["op"]:
                raise Mismatch(f"{who}: {row} for {read}")
            if read["op"] == "alarm":
                account.timers.add(now + 20 * (1 + read["v"] % 4))
            else:
                account.take(read["op"], read["v"], now)
            must_be([(row["total"], row["held"])], [account.held()])
        must_be(list(left), [])


# Reminders: event-time timers

_EVERY_MS = 2_000


class Reminders(KeyedProcessor):
    """Counts a key's older rows each time that two seconds of event time have passed."""

    output_schema = "k long, until long, n long"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.times = handle.get_list_state("times", "at long")

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        for row in rows:
            at = int(row.ts.timestamp() * 1000)
            self.times.append_value((at,))
            self.handle.register_timer(at // _EVERY_MS * _EVERY_MS + _EVERY_MS, time="event")
        yield from ()

    def handle_expired_timer(self, key: Any, timers: Any, expired: Any) -> Iterator[Any]:
        until = expired.expiry_ms
        yield (key[0], until, sum(row.at < until for row in self.times.get()))


class MergedReminders(Reminders):
    """Reminders that merge: each part has its own times and timers."""

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        for _ in super().handle_input_rows(key, rows, timers):
            pass
        yield from ()

    def merge(self, other: MergedReminders) -> None:
        for at in other.times.get():
            self.times.append_value(at)


def _reminders(sent: list[Row], output: list[Row]) -> None:
    wanted = set()
    for row in sent:
        until = row["ts"] // _EVERY_MS * _EVERY_MS + _EVERY_MS
        older = sum(one["k"] == row["k"] and one["ts"] < until for one in sent)
        wanted.add((row["k"], until, older))
    must_be(plain(output), sorted(wanted, key=repr))


def _bells(sent: list[Row], output: list[Row]) -> None:
    every = Bells.every_ms
    wanted = {(row["k"], row["ts"] // every * every + every) for row in sent}
    must_be(plain(output), sorted(wanted, key=repr))


# A processor that merges: the last value of each key


def _histogram(sent: list[Row], output: list[Row]) -> None:
    twin = HistogramTwin()
    wanted = twin.epoch([sent], Now(0, None, False))
    must_be(sorted(newest(output, "k").values(), key=repr), plain(wanted))


# Mixed steps: stateless, keyed, stateless, keyed, stateless


def _clicks(pick: random.Random, rows: int, now_ms: int) -> list[Row]:
    return [click(pick, now_ms - pick.randrange(DELAY_MS + 1)) for _ in range(rows)]


def _doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(2, "v", pc.multiply(batch.column("v"), 2))


def _odd(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.equal(pc.bit_wise_and(batch.column("g"), 1), 1))


def _named(batch: pa.RecordBatch) -> pa.RecordBatch:
    names = pc.binary_join_element_wise("g", pc.cast(batch.column("g"), pa.string()), "")
    return batch.set_column(0, "g", names)


_BEST = TopPlan(CLICKS, ["k"], 2, "v desc, ts desc, g desc")
_BY_GROUP = AggregatePlan(
    _BEST.output,
    ["g"],
    {"n": aggregates.count(), "total": aggregates.sum("v")},
    emit="changes",
)
_NAMED = _BY_GROUP.output.set(0, pa.field("g", pa.string()))
MIXED = FlowPlan(
    (SourcePlan(CLICKS, "ts", DELAY_MS),),
    (
        MapStep("doubled", _doubled, CLICKS, CLICKS),
        KeyedStep("best", SLOTS, _BEST),
        MapStep("odd", _odd, _BEST.output, _BEST.output),
        KeyedStep("groups", SLOTS, _BY_GROUP),
        MapStep("named", _named, _BY_GROUP.output, _NAMED),
    ),
)


def _mixed(sent: list[Row], output: list[Row]) -> None:
    by_key: dict[int, list[Row]] = defaultdict(list)
    for row in sent:
        by_key[row["k"]].append(row | {"v": 2 * row["v"]})
    totals: dict[str, tuple[int, int]] = {}
    for rows in by_key.values():
        rows.sort(key=lambda row: (row["v"], row["ts"], row["g"]), reverse=True)
        for row in rows[:2]:
            if row["g"] % 2:
                n, total = totals.get(f"g{row['g']}", (0, 0))
                totals[f"g{row['g']}"] = (n + 1, total + row["v"])
    must_be(net(output), sorted(((g, *of, 1) for g, of in totals.items()), key=repr))


# Windows that emit each update


_UPDATED = WindowPlan(
    CLICKS, ["k"], {"n": aggregates.count(), "total": aggregates.sum("v")}, tumbling("4s"), "ts", 0, "update",
)  # fmt: skip


def _updated(sent: list[Row], output: list[Row]) -> None:
    wanted: dict[tuple[int, int], tuple[int, int]] = {}
    for row in sent:
        at = (row["k"], row["ts"] // 4_000 * 4_000)
        n, total = wanted.get(at, (0, 0))
        wanted[at] = (n + 1, total + row["v"])
    newest_of: dict[tuple[int, int], tuple[int, int]] = {}
    for k, start, _, n, total in plain(output):
        if n >= newest_of.get((k, start), (0, 0))[0]:
            newest_of[k, start] = (n, total)
    must_be(sorted(newest_of.items()), sorted(wanted.items()))


# Shops: the output of each partition is in the order of its input


def _in_order(sent: list[Row], output: list[Row]) -> None:
    wanted, left = in_arrival_order(sent), by_partition(output)
    must_be(sorted(left), sorted(wanted))
    for partition, rows in wanted.items():
        must_be(left[partition], rows)


def _one(plan: Any, source: SourcePlan, name: str) -> FlowPlan:
    return FlowPlan((source,), (KeyedStep(name, SLOTS, plan),))


_CLICKS = SourcePlan(CLICKS, "ts", DELAY_MS)
SUBJECTS: dict[str, Subject] = {
    "sums": Subject(SUMS, _numbers, _sums),
    "diary": Subject(
        _one(ProcessPlan(ORDERS, ["who"], Diary()), SourcePlan(ORDERS), "diary"), _orders, _diary, "who",
    ),
    "reminders": Subject(
        _one(ProcessPlan(CLICKS, ["k"], Reminders()), _CLICKS, "reminders"), _clicks, _reminders, closes=True,
    ),
    "merged-reminders": Subject(
        _one(ProcessPlan(CLICKS, ["k"], MergedReminders()), _CLICKS, "reminders"),
        _clicks,
        _reminders,
        closes=True,
    ),
    "bells": Subject(
        _one(ProcessPlan(CLICKS, ["k"], Bells()), _CLICKS, "bells"), _clicks, _bells, closes=True,
    ),
    "histogram": Subject(
        _one(ProcessPlan(CLICKS, ["k"], Histogram()), _CLICKS, "histogram"), _clicks, _histogram,
    ),
    "mixed": Subject(MIXED, _clicks, _mixed),
    "updated": Subject(_one(_UPDATED, _CLICKS, "updated"), _clicks, _updated),
    "shops": Subject(replace(TWO_KEYS, ordered=True), shop_rows, _in_order, "p"),
    "chained": Subject(
        replace(THREE_KEYS, ordered=True),
        shop_rows,
        lambda sent, output: _in_order(sent, unchained(output)),
        "p",
    ),
    "distinct": _of_case(_distinct()),
    "recent": _of_case(_recent("inner")),
    "recent-left": _of_case(_recent("left")),
    **{name: _of_case(case) for name, case in CASES.items() if not case.by_clock},
}  # fmt: skip


def sources_of(flow: FlowPlan, rows: Sequence[Row]) -> dict[int, list[Row]]:
    """Rows by the index of their source."""
    by_source: dict[int, list[Row]] = {}
    for row in rows:
        by_source.setdefault(row.get(INPUT, 0), []).append(row)
    return by_source

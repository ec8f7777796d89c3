"""A recording as columns for charts: a point for each moment or span of moments, marks and moves. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from penstock.control.journal.entry import Entry
from penstock.errors import SettingError
from penstock.observe.bounds import BoundMoment
from penstock.observe.moment import Moment
from penstock.plan.placement import MOST_SLOTS
from penstock.plan.slots import slots_from_text, slots_to_text

Columns = dict[str, list[float | None]]
"""Name -> values, one for each point."""


@dataclass(frozen=True)
class Point:
    """One moment, or several in a row, for the charts. None means that there was nothing to measure."""

    time_ms: float
    """End, in milliseconds since 1970."""
    seconds: float
    """Length."""
    rows: int
    rate: float | None
    """Input in rows per second."""
    backlog: int
    mean_ms: float | None
    p50_ms: float | None
    p99_ms: float | None
    bound_ms: float | None
    """Latency bound of the SLA."""
    windows: int
    kept: int
    hosts: int
    functions: int
    state_bytes: int
    money: float | None
    """US dollars since the start."""
    epochs: int
    read_ms: float
    """Sum over the epochs, as the next two."""
    process_ms: float
    seal_ms: float
    moved: int
    """Slots that got another host."""
    asked: int
    """Requests for entries that rows waited for."""
    fetched: int
    """Entries that followed their slots."""
    left_behind: int
    """Entries of moved slots that nobody has asked for."""
    bounds: tuple[BoundMoment, ...] = ()
    """Every bound of the SLA."""


def point_of(moment: Moment) -> Point:
    """The point of one moment."""
    latency, epochs, moves = moment.latency, moment.epochs, moment.moves
    read_ms = sum(min(epoch.read_ms, epoch.sink_ms) for epoch in epochs)
    return Point(
        time_ms=moment.time_ms,
        seconds=moment.seconds,
        rows=moment.rows,
        rate=moment.rate,
        backlog=moment.backlog,
        mean_ms=None if latency is None else latency.mean_ms,
        p50_ms=None if latency is None else latency.p50_ms,
        p99_ms=None if latency is None else latency.p99_ms,
        bound_ms=None if moment.sla is None else moment.sla.latency_ms,
        windows=moment.windows,
        kept=moment.kept,
        hosts=moment.hosts,
        functions=moment.functions,
        state_bytes=sum(host.state_bytes for step in moment.steps for host in step.hosts),
        money=None if moment.money is None else moment.money.total,
        epochs=len(epochs),
        read_ms=read_ms,
        process_ms=sum(epoch.sink_ms for epoch in epochs) - read_ms,
        seal_ms=sum(epoch.seal_ms for epoch in epochs),
        moved=sum(len(handover.slots) for handover in moves.handovers if handover.why != "start"),
        asked=moves.fetches,
        fetched=moves.fetched_keys,
        left_behind=moves.left_behind,
        bounds=moment.all_bounds,
    )


_SUMS = (
    "seconds", "rows", "windows", "kept", "epochs", "read_ms", "process_ms", "seal_ms", "moved", "asked",
    "fetched",
)  # fmt: skip
_MOST = ("backlog", "p99_ms", "hosts", "functions")
"""Figures of which the highest counts: a peak must not vanish where an hour is drawn."""
_BY_ROWS = ("mean_ms", "p50_ms")


def merged(points: Sequence[Point]) -> Point:
    """Several points in a row as one. Of what is no sum, average or peak, the last counts."""
    if len(points) == 1:
        return points[0]
    values = {field.name: getattr(points[-1], field.name) for field in fields(Point)}
    values |= {name: sum(getattr(point, name) for point in points) for name in _SUMS}
    for name in _MOST:
        known = [value for point in points if (value := getattr(point, name)) is not None]
        values[name] = max(known, default=None)
    for name in _BY_ROWS:
        values[name] = _mean((getattr(point, name), point.rows) for point in points)
    values["rate"] = _mean((point.rate, point.seconds) for point in points)
    values["bounds"] = _merged_bounds(points)
    return Point(**values)


def _merged_bounds(points: Sequence[Point]) -> tuple[BoundMoment, ...]:
    """The newest bounds, with the figures and counts of all these points."""
    merged_ones = []
    for newest in points[-1].bounds:
        name = bound_name(newest)
        same = [(b, max(p.rows, 1)) for p in points for b in p.bounds if bound_name(b) == name]
        known = [(b.reached_ms, rows) for b, rows in same if b.reached_ms is not None]
        worst = max((reached_ms for reached_ms, _ in known), default=None)
        merged_ones.append(
            replace(
                newest,
                reached_ms=worst if newest.p99 else _mean(known),
                windows=sum(bound.windows for bound, _ in same),
                kept=sum(bound.kept for bound, _ in same),
            )
        )
    return tuple(merged_ones)


def bound_name(bound: BoundMoment) -> str:
    """Name of a bound, by which the page knows it.

    >>> bound_name(BoundMoment(1000, 1000, p99=True, step="clicks"))
    'p99 of clicks'
    """
    figure = "p99" if bound.p99 else "mean"
    return figure if bound.step is None else f"{figure} of {bound.step}"


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most `most` points, each of an equal share of the time."""
    if len(points) <= most:
        return list(points)
    begun_ms, ended_ms = points[0].time_ms, points[-1].time_ms
    spans: dict[int, list[Point]] = {}
    for point in points:
        at = (point.time_ms - begun_ms) / max(ended_ms - begun_ms, 1.0)
        spans.setdefault(min(int(at * most), most - 1), []).append(point)
    return [merged(span) for span in spans.values()]


def columns(points: Sequence[Point]) -> Columns:
    """Points as columns: each field of `Point`, with the phases of an epoch as averages. A bound has four
    columns, such as "limit:p99", "reached:p99", "windows:p99" and "kept:p99"."""
    names = [field.name for field in fields(Point) if field.name != "bounds"]
    table: Columns = {name: [getattr(point, name) for point in points] for name in names}
    table |= _bound_columns(points)
    for phase in ("read_ms", "process_ms", "seal_ms"):
        table[phase] = [
            getattr(point, phase) / point.epochs if point.epochs else None for point in points
        ]
    short = {name: [_short(value) for value in column] for name, column in table.items()}
    return short | {"time_ms": table["time_ms"]}  # in full: a client compares it with a moment's


def _bound_columns(points: Sequence[Point]) -> Columns:
    rows = [{bound_name(bound): bound for bound in point.bounds} for point in points]
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        f"{column}:{name}": [getattr(row[name], field) if name in row else None for row in rows]
        for name in names
        for column, field in _BOUND_COLUMNS.items()
    }


_BOUND_COLUMNS = {
    "limit": "latency_ms",
    "reached": "reached_ms",
    "windows": "windows",
    "kept": "kept",
}
"""Column -> field of `BoundMoment`."""


def marks(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Treatments and other events of the journal that charts mark: time, kind, step and text."""
    kinds = ((entry, _kind(entry)) for entry in entries)
    return [
        {"time_ms": entry.time_ms, "kind": kind, "step": entry.step, "text": entry.text}
        for entry, kind in kinds
        if kind
    ]


def moves(moment: Moment) -> list[dict[str, Any]]:
    """Slots that got another host in a moment, other than at the start."""
    return [
        {
            "time_ms": moment.time_ms,
            "step": handover.step,
            "slots": slots_to_text(handover.slots),
            "count": len(handover.slots),
            "source": handover.source,
            "target": handover.target,
            "why": handover.why,
        }
        for handover in moment.moves.handovers
        if handover.why != "start"
    ]


def marks_by_hand(
    moved: Iterable[Mapping[str, Any]], entries: Sequence[Entry], slots: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Marks of moves and scales that a user asked for, given the result of `moves`: the journal knows only
    what the controller does. `slots` are the steps' numbers of slots; beyond them are parts of split ones."""
    found: dict[tuple[float, str, str], list[str]] = {}
    treated: dict[tuple[str, str], list[_Treated]] | None = None
    for move in moved:
        if move["why"] not in _BY_HAND:
            continue
        treated = _treated(entries) if treated is None else treated
        step, whole = move["step"], slots.get(move["step"], MOST_SLOTS)
        chosen = {slot for slot in _slots(move["slots"]) if slot < whole}
        for treatment in treated.get((step, move["target"]), ()):
            if treatment.time_ms <= move["time_ms"]:
                chosen -= treatment.slots
        if chosen:
            text = f"slots {slots_to_text(sorted(chosen))} to {move['target']}"
            found.setdefault((move["time_ms"], step, _BY_HAND[move["why"]]), []).append(text)
    return [
        {"time_ms": time_ms, "kind": kind, "step": step, "text": ", ".join(texts)}
        for (time_ms, step, kind), texts in found.items()
    ]


class _Treated(NamedTuple):
    """Slots that the controller moved to a host."""

    time_ms: float
    slots: frozenset[int]


def _treated(entries: Sequence[Entry]) -> dict[tuple[str, str], list[_Treated]]:
    """(step, host) -> slots that it got from the controller, or from a host that had to leave."""
    found: dict[tuple[str, str], list[_Treated]] = {}
    for entry in entries:
        gains: Iterable[tuple[Any, Any]] = ()
        if entry.event == "began":
            treatments = entry.facts.get("treatments", ())
            gains = ((one.get("target"), one.get("slots")) for one in treatments)
        elif entry.event == "host leaves":
            gains = ((entry.facts.get("by"), entry.facts.get("slots")),)
        for host, slots in gains:
            treated = _Treated(entry.time_ms, frozenset(_slots(slots)))
            found.setdefault((entry.step, str(host)), []).append(treated)
    return found


def _slots(text: object) -> tuple[int, ...]:
    """Slots in a text; none if another release wrote it in another way."""
    try:
        return slots_from_text(str(text or ""), 2 * MOST_SLOTS)
    except SettingError:
        return ()


_BY_HAND = {"move": "move by hand", "scale": "scale by hand"}
"""Why slots moved -> kind of its mark, unless the controller moved them."""
_MARKED = {
    "host lost", "host leaves", "hot key", "setting", "couriers", "offload", "split", "failed",
}  # fmt: skip


def _kind(entry: Entry) -> str:
    """The kind of a mark; empty for an entry that charts do not mark."""
    if entry.event == "began":
        kinds = (str(facts["kind"]) for facts in entry.facts.get("treatments", ()))
        return ", ".join(dict.fromkeys(kind.replace("_", " ") for kind in kinds))
    return entry.event if entry.event in _MARKED else ""


def _mean(weighed: Iterable[tuple[float | None, float]]) -> float | None:
    known = [(value, weight) for value, weight in weighed if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def _short(value: float | None) -> float | None:
    """The number with as many digits as a chart can show, since a day has many numbers."""
    if value is None or isinstance(value, int):
        return value
    return round(value, 6 if abs(value) < 1 else 1)

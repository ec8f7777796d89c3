"""An epoch as a tree of spans: source, couriers, hosts, sink, seal, and each process in it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.observe.moment import EpochMoment
from penstock.spans import Span

_MOST = 32
"""Couriers, and hosts, that have a span of their own at most: those that worked longest."""
_PHASES = {"read": "source and couriers", "process": "hosts and sink", "seal": "seal"}
"""Phase of an epoch -> name of its span, where it is not known what each process did."""
_DRIVER = {"prepare": "prepare", "seal": "seal", "manifest": "manifest", "failed run": "failed run"}
"""What the driver does by itself -> name of the span."""
_COURIER, _HOST = "courier ", "host "


@dataclass(frozen=True)
class Piece:
    """A span of a trace. Times are in milliseconds since 1970."""

    name: str
    start_ms: float
    end_ms: float
    work_ms: Mapping[str, float] = field(default_factory=dict)
    """Name of the work in it -> milliseconds, over all that worked at the same time."""
    pieces: tuple[Piece, ...] = ()


def epoch_tree(epoch: EpochMoment, spans: Sequence[Span]) -> Piece:
    """The trace of an epoch, from the spans of all processes in it.

    >>> spans = [Span(3, "courier 0", "read", 100.0, 40.0), Span(3, "courier 0", "output", 170.0, 5.0),
    ...     Span(3, "host sum/0", "apply", 140.0, 20.0), Span(3, "driver", "write", 90.0, 100.0)]
    >>> tree = epoch_tree(EpochMoment(3, 1, 9, 90, 60.0, 100.0, 0.0, None), spans)
    >>> [(piece.name, piece.start_ms, piece.end_ms) for piece in tree.pieces]
    [('source', 100.0, 140.0), ('couriers', 100.0, 175.0), ('hosts', 140.0, 160.0), ('sink', 170.0, 190.0)]
    """
    pieces = _pieces([span for span in spans if span.epoch == epoch.epoch]) or _phases(epoch)
    done_ms = epoch.started_ms + epoch.sink_ms + epoch.seal_ms
    return Piece(
        "epoch",
        min([float(epoch.started_ms), *(piece.start_ms for piece in pieces)]),
        max([done_ms, *(piece.end_ms for piece in pieces)]),
        pieces=pieces,
    )


def _phases(epoch: EpochMoment) -> tuple[Piece, ...]:
    """The phases, one after the other."""
    pieces, now_ms = [], float(epoch.started_ms)
    for phase, took_ms in epoch.phases().items():
        pieces.append(Piece(_PHASES[phase], now_ms, now_ms + took_ms))
        now_ms += took_ms
    return tuple(pieces)


def _pieces(spans: Sequence[Span]) -> tuple[Piece, ...]:
    driver = [span for span in spans if span.where == "driver"]
    couriers = [span for span in spans if span.where.startswith(_COURIER)]
    hosts = [span for span in spans if span.where.startswith(_HOST)]
    found = [
        *(_piece(_DRIVER[span.name], [span]) for span in driver if span.name in _DRIVER),
        _piece("source", [span for span in couriers if span.name == "read"]),
        _group("couriers", couriers),
        _group("hosts", hosts),
        _sink([span for span in driver if span.name == "write"], couriers),
    ]
    known = (piece for piece in found if piece is not None)
    return tuple(sorted(known, key=lambda piece: piece.start_ms))


def _sink(writes: Sequence[Span], couriers: Sequence[Span]) -> Piece | None:
    """From the first output of a courier until the sink has all of it. Couriers run in the sink's own job."""
    if not writes:
        return None
    outputs = [s.start_ms for s in couriers if s.name in ("output", "hand over")]
    write = writes[-1]
    begin_ms = max(min(outputs, default=write.start_ms), write.start_ms)
    return Piece("sink", min(begin_ms, write.end_ms), write.end_ms)


def _group(name: str, spans: Sequence[Span]) -> Piece | None:
    """A kind of processes, and below it those that worked longest."""
    whole, by_process = _piece(name, spans), dict[str, list[Span]]()
    if whole is None:
        return None
    for span in spans:
        by_process.setdefault(span.where, []).append(span)
    each = [piece for where, mine in by_process.items() if (piece := _piece(where, mine))]
    each.sort(key=lambda piece: piece.start_ms - piece.end_ms)
    return Piece(name, whole.start_ms, whole.end_ms, whole.work_ms, tuple(each[:_MOST]))


def _piece(name: str, spans: Iterable[Span]) -> Piece | None:
    """A piece from the first of these spans to the last; None if there is none."""
    work_ms: dict[str, float] = {}
    starts, ends = list[float](), list[float]()
    for span in spans:
        work_ms[span.name] = work_ms.get(span.name, 0.0) + span.took_ms
        starts.append(span.start_ms)
        ends.append(span.end_ms)
    return Piece(name, min(starts), max(ends), work_ms) if starts else None

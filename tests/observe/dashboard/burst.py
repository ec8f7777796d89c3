"""A made-up query in a burst of five times its load: functions carry it first, hosts are added, slots move,
a key is hot, a host is lost and comes back, and hosts are removed again.

`python -m tests.observe.dashboard.burst` serves it, as if it ran now.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.control.elastic import Steering
from penstock.control.journal.entry import Entry
from penstock.control.money import Money
from penstock.driver.progress import Latency
from penstock.model import SLA, HostId, LatencyBound, StepId
from penstock.observe.bounds import judged, reached
from penstock.observe.moment import EpochMoment, HostMoment, Moment, MovesMoment, StepMoment
from penstock.observe.recording import FlowFacts, KeptRecording
from penstock.plan.placement import Handover
from penstock.plan.slots import slots_to_text

SLOTS, STEP = 64, "clicks"
SERVICE = 4_600.0
"""Records per second that a host can process."""
FUNCTION = 2_500.0
"""Records per second that a function carries."""
START_MS = 1_790_000_000_000.0
BOUND = SLA(1_000, 1_000)
_HOSTS = ((0, 2), (68, 5), (76, 8), (128, 5), (140, 3), (156, 2))
"""From these seconds on, that many hosts."""
_LOST, _BACK = 98, 106


def _load(second: int, chance: random.Random) -> list[float]:
    """Records per second of each slot."""
    wave = 4_800 * (1 + 0.12 * ((second % 50) / 25 - 1) ** 2)
    total = wave * (5 if 62 <= second < 120 else 1) * chance.uniform(0.95, 1.05)
    weights = [1 / (1 + (slot * 29 % SLOTS)) ** 0.35 for slot in range(SLOTS)]
    if 80 <= second < 120:
        weights[17] += sum(weights) * 0.07
    return [total * weight / sum(weights) for weight in weights]


@dataclass
class _Burst:
    moments: list[Moment] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    owner: list[int] = field(default_factory=lambda: [slot * 2 // SLOTS for slot in range(SLOTS)])
    backlog: dict[int, float] = field(default_factory=dict)
    hosts: int = 2
    spent: Money = field(default_factory=Money)
    left_behind: int = 0

    def note(self, second: float, event: str, text: str, /, **facts: Any) -> None:
        at_ms = START_MS + 1000 * second
        self.entries.append(Entry(at_ms, int(second), STEP, event, text, facts))

    def place(self, loads: Sequence[float], hosts: Sequence[int]) -> list[Handover]:
        """Move as few slots as give each of these hosts about the same load."""
        before, goal = list(self.owner), sum(loads) / len(hosts)
        carried = dict.fromkeys(hosts, 0.0)
        homeless = []
        for slot in sorted(range(SLOTS), key=lambda slot: -loads[slot]):
            host = self.owner[slot]
            if host in carried and carried[host] + loads[slot] <= goal * 1.06:
                carried[host] += loads[slot]
            else:
                homeless.append(slot)
        for slot in homeless:
            host = min(hosts, key=lambda host: carried[host])
            carried[host] += loads[slot]
            self.owner[slot] = host
        moved: dict[tuple[int, int], list[int]] = {}
        for slot, (old, new) in enumerate(zip(before, self.owner, strict=True)):
            if old != new:
                moved.setdefault((old, new), []).append(slot)
        return [
            Handover(StepId(STEP), tuple(slots), _name(old), _name(new), "scale")
            for (old, new), slots in moved.items()
        ]

    def treat(self, second: int, kind: str, handovers: Sequence[Handover], latency: float) -> None:
        treatments = [
            {
                "kind": kind,
                "slots": slots_to_text(h.slots),
                "source": h.source,
                "target": h.target,
                "reason": "",
            }
            for h in handovers
        ]
        what = f"{kind.replace('_', ' ')}: {len(treatments)} moves of slots"
        self.note(
            second - 0.4, "decided", f"severe. {what}", treatments=treatments, health="severe"
        )
        self.note(
            second - 0.2, "began", f"{what}. latency {latency:,.0f} ms", treatments=treatments
        )
        self.note(second + 1.5, "done", what, treatments=treatments)


def _name(host: int) -> HostId:
    return HostId(f"{STEP}/{host}")


def burst(seconds: int = 180) -> KeptRecording:
    """The recording. The same each time."""
    chance, state, epoch = random.Random(7), _Burst(), 0
    for second in range(1, seconds + 1):
        loads = _load(second, chance)
        lost = _LOST <= second < _BACK
        wanted = [count for begun, count in _HOSTS if begun <= second][-1]
        up = [host for host in range(wanted) if not (lost and host == 3)]
        handovers: list[Handover] = []
        latency = state.moments[-1].latency if state.moments else None
        before_ms = 200.0 if latency is None else latency.mean_ms
        if wanted != state.hosts:
            handovers = state.place(loads, up)
            kind = "scale_out" if wanted > state.hosts else "scale_in"
            state.treat(second, kind, handovers, before_ms)
            state.hosts = wanted
        elif second == _LOST:
            handovers = [replace(h, why="host lost") for h in state.place(loads, up)]
            slots = slots_to_text(s for h in handovers if h.source == _name(3) for s in h.slots)
            state.note(second, "host lost", f"{_name(3)} with slots {slots}: its process ended",
                       host=_name(3), slots=slots, why="its process ended")  # fmt: skip
        elif second == _BACK:
            handovers = [replace(h, why="host is back") for h in state.place(loads, up)]
        elif second == 88:
            handovers = state.place(loads, up)
            state.treat(second, "balance", handovers, before_ms)
        functions = 8 if 63 <= second < 80 else 0
        if second in (63, 80):
            state.note(second, "offload", f"functions carry {functions * FUNCTION:,.0f} records/s",
                       functions=functions)  # fmt: skip
        hot: tuple[dict[str, Any], ...] = ()
        if 82 <= second < 120:
            words = f"{100 * loads[17] / SERVICE:.0f} % of the capacity of a host; added up in two stages"
            hot = ({"slot": 17, "key": "page=/launch", "rate": loads[17] * 0.9, "text": words},)
        if second == 82:
            state.note(second, "hot key", f"page=/launch in slot 17: {hot[0]['text']}", **hot[0])
        carried = functions * FUNCTION
        share = max(0.0, 1 - carried / sum(loads))
        figures, worst_ms = [], 0.0
        for host in range(max(wanted, max(state.owner) + 1)):
            arriving = share * sum(x for s, x in enumerate(loads) if state.owner[s] == host)
            waiting = (
                max(0.0, state.backlog.get(host, 0.0) + arriving - SERVICE) if host in up else 0.0
            )
            state.backlog[host] = waiting
            latency_ms = 140 + 90 * arriving / SERVICE + 1000 * waiting / SERVICE
            worst_ms = max(worst_ms, latency_ms)
            load = arriving / SERVICE
            health = "severe" if load > 1 else "moderate" if load > 0.85 else "good"
            owned = state.owner.count(host)
            figures.append(
                HostMoment(
                    str(_name(host)),
                    host in up,
                    owned,
                    health,
                    arriving,
                    SERVICE,
                    latency_ms,
                    None if load >= 1 else 140 / (1 - load),
                    9_000 * owned + 31 * second,
                    1_400_000 * owned + 9_000 * second,
                    int(min(arriving, SERVICE)),
                    min(1000.0, 950 * load),
                )
            )
        mean_ms = worst_ms * chance.uniform(0.72, 0.8) * (1.6 if second == _LOST else 1)
        seen = Latency(mean_ms, mean_ms * 0.9, worst_ms * chance.uniform(1.2, 1.5))
        rows, moved = int(sum(loads)), sum(len(h.slots) for h in handovers)
        state.left_behind = int(state.left_behind * 0.93) + 5_200 * moved
        state.spent = Money(
            state.spent.hosts + 0.063 * len(up) / 3600, state.spent.functions + functions * 0.000029
        )
        epochs = []
        for half in (0, 500):
            epoch += 1
            busy = min(460.0, 60 + rows / 90)
            epochs.append(
                EpochMoment(
                    epoch,
                    1,
                    rows // 2,
                    int(START_MS + 1000 * second - 900 + half),
                    0.35 * busy,
                    busy,
                    22.0 + chance.random() * 6,
                    seen,
                )
            )
        step = StepMoment(
            STEP, tuple(figures), tuple(state.owner), tuple(round(x) for x in loads),
            pending=moved, health=max((f.health or "" for f in figures), key="good moderate severe".find),
            treating=f"{moved} slots move" if moved else None, at_least=1, at_most=8, margin=0.2,
            alert_ms=500.0, hot_keys=hot, functions=functions, redirected=carried,
        )  # fmt: skip
        state.moments.append(
            Moment(
                time_ms=START_MS + 1000 * second,
                seconds=1.0,
                state="running",
                message="running",
                epoch=epoch,
                rows=rows,
                rate=float(rows),
                backlog=int(sum(state.backlog.values())) + 600,
                latency=seen,
                windows=1,
                kept=int(mean_ms <= BOUND.latency_ms),
                epochs=tuple(epochs),
                steps=(step,),
                moves=MovesMoment(
                    handovers=tuple(handovers),
                    fetched_keys=3_100 * moved,
                    fetched_bytes=500_000 * moved,
                    fetches=40 * moved,
                    wait_ms=2.0 * moved,
                    left_behind=state.left_behind,
                ),
                sla=BOUND,
                policy="switch",
                money=state.spent,
            )
        )
    facts = FlowFacts(
        "clicks by page", "f1", "micro_batch", "file:///data/checkpoints/clicks", START_MS, {STEP: SLOTS},
        version="0.1.0",
    )  # fmt: skip
    return KeptRecording(facts, state.moments, sorted(state.entries, key=lambda e: e.time_ms))


MORE_BOUNDS = SLA(
    1_000,
    1_000,
    more=(LatencyBound(1_500, 1_000, p99=True), LatencyBound(800, 1_000, step=STEP)),
)


def with_bounds(recording: KeptRecording, sla: SLA = MORE_BOUNDS) -> KeptRecording:
    """The same recording under other bounds, each kept or missed in every moment."""

    def under(moment: Moment) -> Moment:
        steps = {}
        for step in moment.steps:
            known = [host.latency_ms for host in step.hosts if host.latency_ms is not None]
            steps[step.step] = sum(known) / len(known)
        found = []
        for bound in sla.bounds:
            seen = reached(bound, moment.latency) if bound.step is None else steps.get(bound.step)
            kept = seen is not None and seen <= bound.latency_ms
            found.append(judged(bound, seen, 1, int(kept)))
        first = found[0]
        return replace(moment, sla=sla, windows=first.windows, kept=first.kept, bounds=tuple(found))

    return replace(recording, kept=[under(moment) for moment in recording.kept])


def stalled(recording: KeptRecording, since: int) -> KeptRecording:
    """The same recording, of which nothing comes out from that second on."""

    def still(moment: Moment, second: int) -> Moment:
        if second < since:
            return moment
        return replace(
            moment, rows=0, rate=None, latency=None, windows=0, kept=0, epochs=(),
            backlog=4_000 * (second - since + 1),
        )  # fmt: skip

    kept = [still(moment, at + 1) for at, moment in enumerate(recording.kept)]
    return replace(recording, kept=kept)


class Growing:
    """A recording that is played: it has what had happened by now. `clock` tells the seconds since then."""

    def __init__(self, whole: KeptRecording, clock: Callable[[], float]) -> None:
        self._whole, self._clock = whole, clock
        self.facts = whole.facts

    @property
    def running(self) -> bool:
        return self._clock() < len(self._whole.kept)

    def moments(self, since_ms: float = 0.0) -> list[Moment]:
        until_ms = self.facts.started_ms + 1000 * self._clock()
        return [moment for moment in self._whole.moments(since_ms) if moment.time_ms <= until_ms]

    def entries(self, since_ms: float = 0.0) -> list[Entry]:
        until_ms = self.facts.started_ms + 1000 * self._clock()
        return [entry for entry in self._whole.entries(since_ms) if entry.time_ms <= until_ms]


class NotedOrders:
    """Takes orders, and keeps them."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def steer(self, steering: Steering) -> dict[str, Any]:
        self.given.append(steering)
        return {"sla": {"latency_ms": 1000, "window_ms": 1000}}

    def move(self, step: str, slots: Sequence[int], to: str) -> None:
        self.given.append((step, tuple(slots), to))

    def scale(self, step: str, hosts: int) -> None:
        self.given.append((step, hosts))


def shifted(recording: KeptRecording, started_ms: float) -> KeptRecording:
    """The same recording, as if it had started at another time."""
    by = started_ms - recording.facts.started_ms
    return KeptRecording(
        replace(recording.facts, started_ms=started_ms),
        [replace(moment, time_ms=moment.time_ms + by) for moment in recording.kept],
        [replace(entry, time_ms=entry.time_ms + by) for entry in recording.journal],
    )


if __name__ == "__main__":
    import sys

    from penstock.observe.dashboard.server import DashboardServer, listening

    already = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    begun = time.time() - already
    played = Growing(shifted(burst(), 1000 * begun), lambda: time.time() - begun)
    place = listening(int(sys.argv[1]) if len(sys.argv) > 1 else True)
    assert place is not None
    server = DashboardServer(place, played, NotedOrders(), "0123456789abcdef")
    print(server.url + "#token=0123456789abcdef", flush=True)
    try:
        time.sleep(3600)
    finally:
        server.stop()

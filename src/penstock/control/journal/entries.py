"""Functions that create the entries of the journal, one for each kind of event.

Unknown or infinite figures are None in an entry's facts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from penstock import codec
from penstock.control.diagnose.hot_keys import HotKey
from penstock.control.diagnose.outlook import Outlook, finite, milliseconds_text
from penstock.control.examine.success import Success
from penstock.control.examine.vitals import Vitals
from penstock.control.journal.entry import At, Entry
from penstock.control.money import Money
from penstock.control.treat.decision import Bounds, Decision, HostHealth, Treatment, after
from penstock.control.treat.offloading import Offloading
from penstock.model import HostId
from penstock.plan.slots import slots_to_text

Treatments = Sequence[Treatment]

_MOST_HOSTS = 64
"""Maximum number of hosts whose figures an entry lists: those with the highest load."""


def decided(
    vitals: Vitals,
    bounds: Bounds,
    decision: Decision,
    *,
    epoch: int | None = None,
    dry_run: bool = False,
) -> Entry:
    """Entry of a policy's decision: its findings, treatments, figures and expected effect.

    >>> from penstock.model import SLA, StepId
    >>> vitals = Vitals.even(StepId("sum"), [40.0, 40.0], hosts=1, service_rate=100.0)
    >>> out = Treatment("scale_out", (1,), HostId("sum/0"), HostId("new/1"), "")
    >>> decision = Decision("severe", (), (out,), ("sum/0 is severe",))
    >>> for sentence in decided(vitals, Bounds(SLA(1000, 1000)), decision).text.split(". "):
    ...     print(sentence)
    severe
    scale out: slots 1 from sum/0 to new/1
    sum/0 is severe
    expected: 2 hosts instead of 1, the busiest at 40 % of its service rate instead of 80 %, latency \
to settle at 25 ms instead of ∞
    """
    hosts = sorted(decision.hosts, key=_load, reverse=True)[:_MOST_HOSTS]
    would = "dry run, would do: " if dry_run else ""
    parts = [
        decision.health,
        *(f"{would}{treatment}" for treatment in decision.treatments),
        *(reason.rstrip(". ") for reason in decision.reasons),
    ]
    if decision.hot_slots:
        parts.append(f"more than any host can take: slots {slots_to_text(decision.hot_slots)}")
    facts = {
        "health": decision.health,
        "hosts": [_figures(host) for host in hosts],
        "hosts_left_out": len(decision.hosts) - len(hosts),
        "reasons": list(decision.reasons),
        "treatments": _treatment_facts(decision.treatments),
        "hot_slots": slots_to_text(decision.hot_slots),
        "bounds": _bounds(bounds),
        "dry_run": dry_run,
    }
    if decision.treatments:
        now = Outlook.of(vitals, bounds)
        then = Outlook.of(after(vitals, decision.treatments), bounds)
        parts.append(f"expected: {then.instead_of(now)}")
        facts |= {"now": now.facts(), "expected": then.facts()}
    at = At(vitals.step, vitals.now_ms, epoch)
    return at.entry("decided", ". ".join(parts), facts)


def refused(at: At, why: str, wanted: str = "") -> Entry:
    """Entry of a refusal: something wanted is not done because of a limit, a missing host or a request.

    >>> refused(At("sum", 0.0), "at most 4 hosts are allowed", wanted="a fifth host").text
    'a fifth host: at most 4 hosts are allowed'
    """
    text = f"{wanted}: {why}" if wanted else why
    return at.entry("refused", text, {"why": why, "wanted": wanted})


def began(at: At, treatments: Treatments, latency_ms: float, *, revised: bool = False) -> Entry:
    """Entry of treatments that the data plane has begun. `latency_ms` is the step's present latency.

    If `revised`, they replace treatments that began earlier and had no effect yet.

    >>> move = Treatment("balance", (1, 2), HostId("sum/0"), HostId("sum/1"), "")
    >>> began(At("sum", 0.0), [move], 640.0).text
    'balance: slots 1-2 from sum/0 to sum/1. latency 640 ms'
    """
    facts = {
        "treatments": _treatment_facts(treatments),
        "latency_ms": finite(latency_ms),
        "revised": revised,
    }
    instead = "replaces the treatments under way. " if revised else ""
    text = instead + _story(treatments, f"latency {milliseconds_text(latency_ms)}")
    return at.entry("began", text, facts)


def done(
    at: At,
    treatments: Treatments,
    began_ms: float,
    latency_ms: float,
    *,
    hosts: Sequence[HostId] = (),
) -> Entry:
    """Entry of treatments that are in force. `hosts` are the present hosts of the step.

    >>> move = Treatment("balance", (1, 2), HostId("sum/0"), HostId("sum/1"), "")
    >>> done(At("sum", 9_200.0), [move], 8_000.0, 700.0).text
    'balance: slots 1-2 from sum/0 to sum/1. took 1,200 ms, latency 700 ms'
    """
    took_ms = at.time_ms - began_ms
    facts = {
        "treatments": _treatment_facts(treatments),
        "took_ms": finite(took_ms),
        "latency_ms": finite(latency_ms),
        "hosts_now": list(hosts),
    }
    result = f"took {milliseconds_text(took_ms)}, latency {milliseconds_text(latency_ms)}"
    result += f", hosts {', '.join(hosts)}" if hosts else ""
    return at.entry("done", _story(treatments, result), facts)


def failed(at: At, treatments: Treatments, why: str) -> Entry:
    """Entry of treatments that were given up. The next decision starts from the present placement.

    >>> failed(At("sum", 0.0), [], "no core is free for a host").text
    'given up: no core is free for a host'
    """
    facts = {"treatments": _treatment_facts(treatments), "why": why}
    return at.entry("failed", _story(treatments, f"given up: {why}"), facts)


def outcome(
    at: At,
    before_ms: float,
    latency_ms: float,
    bounds: Bounds,
    *,
    expected_ms: float = math.nan,
    success: Mapping[str, Success] | None = None,
) -> Entry:
    """Entry of the outcome of treatments, one window after they were done. `success` is that of the step, by
    kind of bound.

    >>> from penstock.model import SLA
    >>> outcome(At("sum", 0.0), 1_640.0, 180.0, Bounds(SLA(1000, 1000)), expected_ms=210.0).text
    'latency 180 ms instead of 1,640 ms, within the bound of 1,000 ms; expected 210 ms'
    >>> kept = {"p99": Success(minute=1.0, hour=0.5, run=0.5)}
    >>> outcome(At("sum", 0.0), 20.0, 10.0, Bounds(SLA(1000, 1000)), success=kept).text.split("; ")[1]
    'p99 bound kept in 100.0% of the last minute, 50.0% in all'
    """
    kept = latency_ms <= bounds.latency_ms
    bound = "" if math.isnan(latency_ms) else f", {'' if kept else 'not '}within the bound"
    text = (
        f"latency {milliseconds_text(latency_ms)} instead of {milliseconds_text(before_ms)}{bound}"
        + (f" of {milliseconds_text(bounds.latency_ms)}" if bound else "")
        + ("" if math.isnan(expected_ms) else f"; expected {milliseconds_text(expected_ms)}")
    )
    for kind, kept_in in (success or {}).items():
        if kept_in.minute is not None and kept_in.run is not None:
            recent, whole = f"{kept_in.minute:.1%} of the last minute", f"{kept_in.run:.1%} in all"
            text += f"; {kind} bound kept in {recent}, {whole}"
    facts = {
        "before_ms": finite(before_ms),
        "latency_ms": finite(latency_ms),
        "expected_ms": finite(expected_ms),
        "bound_ms": bounds.latency_ms,
        "success": codec.to_plain(success or {}),
    }
    return at.entry("outcome", text, facts)


def host_lost(at: At, host: HostId, slots: Sequence[int], why: str) -> Entry:
    """Entry of a host that died. Its slots go to other hosts.

    >>> host_lost(At("sum", 0.0), HostId("sum/2"), [4, 5, 6], "its process ended").text
    'sum/2 with slots 4-6: its process ended'
    """
    owned = f"with slots {slots_to_text(slots)}" if len(slots) else "without slots"
    facts = {"host": host, "slots": slots_to_text(slots), "why": why}
    return at.entry("host lost", f"{host} {owned}: {why}", facts)


def host_leaves(at: At, host: HostId, slots: Sequence[int], by: HostId) -> Entry:
    """Entry of a host that will end soon. Its slots go to other hosts, then to its replacement `by`.

    >>> host_leaves(At("sum", 0.0), HostId("sum/2"), [4, 5, 6], HostId("sum/3")).text
    'sum/2 with slots 4-6: its executor is being decommissioned; sum/3 takes its place'
    """
    owned = f"with slots {slots_to_text(slots)}" if len(slots) else "without slots"
    place = "it is restarted on another executor" if by == host else f"{by} takes its place"
    why = "its executor is being decommissioned"
    facts = {"host": host, "slots": slots_to_text(slots), "by": by, "why": why}
    return at.entry("host leaves", f"{host} {owned}: {why}; {place}", facts)


def setting(at: At, name: str, before: Any, now: Any) -> Entry:
    """Entry of a changed limit or setting. Both values are JSON values.

    >>> setting(At("sum", 0.0), "at_most", 4, 8).text
    'at_most is 8, was 4'
    """
    facts = {"name": name, "before": before, "now": now}
    return at.entry("setting", f"{name} is {now}, was {before}", facts)


def hot_key(at: At, hot: HotKey) -> Entry:
    """Entry of a key that alone overloads a host, with what is done or can be done about it.

    >>> from penstock.model import StepId
    >>> hot = HotKey(StepId("sum"), 12, "user=42", 5_200.0, 1.3, merges=True)
    >>> hot_key(At("sum", 0.0), hot).text.split(";")[0]
    'user=42 in slot 12, 5,200 records/s: 130 % of the capacity of a host'
    """
    facts = {"slot": int(hot.slot), "key": hot.key, "rate": finite(hot.rate), "text": hot.text}
    text = f"{hot.key} in slot {hot.slot}, {hot.rate:,.0f} records/s: {hot.text}"
    return at.entry("hot key", text, facts)


def split(at: At, slot: int, rate: float, parts: Sequence[float]) -> Entry:
    """Entry of a slot that is split, with its arrivals and the expected ones of its parts, per second.

    >>> split(At("sum", 0.0), 12, 5_200.0, [1_900.0, 1_700.0, 1_600.0]).text
    'slot 12 has 5,200 records/s, more than any host can take, and no single key explains it: it is split \
into 3 slots, with 1,900 records/s at most'
    """
    text = (
        f"slot {slot} has {rate:,.0f} records/s, more than any host can take, and no single key explains "
        f"it: it is split into {len(parts)} slots, with {max(parts):,.0f} records/s at most"
    )
    facts = {"slot": slot, "rate": finite(rate), "parts": [finite(part) for part in parts]}
    return at.entry("split", text, facts)


def united(at: At, slots: Sequence[int]) -> Entry:
    """Entry of split slots that a single host can take again.

    >>> united(At("sum", 0.0), [12]).text
    'slots 12 were split and have little load now: each is put together again'
    """
    named = slots_to_text(slots)
    text = f"slots {named} were split and have little load now: each is put together again"
    return at.entry("split", text, {"united": named})


def helped(at: At, rows: int, of: float) -> Entry:
    """Entry of an epoch whose rows were applied in part by helpers.

    >>> helped(At("sum", 0.0, 41), 12_000, 18_000).text
    'in the middle of epoch 41, helpers applied 12,000 of its 18,000 records'
    """
    text = f"in the middle of epoch {at.epoch}, helpers applied {rows:,} of its {of:,.0f} records"
    return at.entry("helped", text, {"rows": rows, "of": int(of)})


def workers_changed(at: At, before: Mapping[HostId, int], now: Mapping[HostId, int]) -> Entry:
    """Entry of hosts that use more or fewer worker threads than before.

    >>> workers_changed(At("sum", 0.0, 41), {"sum/0": 1}, {"sum/0": 2}).text
    'sum/0 uses 2 workers instead of 1'
    """
    text = ", ".join(
        f"{host} uses {count} worker{'' if count == 1 else 's'} instead of {before[host]}"
        for host, count in now.items()
    )
    return at.entry("workers", text, {"before": dict(before), "now": dict(now)})


def couriers_changed(at: At, before: int, now: int, why: str, *, dry_run: bool = False) -> Entry:
    """Entry of a changed number of couriers in a live flow, or of reassigned partitions.

    >>> couriers_changed(At("couriers", 0.0), 2, 3, "courier 1 was busy for 85 % of its time").text
    '3 couriers instead of 2: courier 1 was busy for 85 % of its time'
    """
    change = f"{now} courier{'' if now == 1 else 's'} instead of {before}"
    if now == before:
        change = f"partitions are reassigned among {now} couriers"
    would = "dry run, would be: " if dry_run else ""
    facts = {"before": before, "now": now, "why": why, "dry_run": dry_run}
    return at.entry("couriers", f"{would}{change}: {why}", facts)


def offload(
    at: At, offloading: Offloading, money: Money | None = None, *, dry_run: bool = False
) -> Entry:
    """Entry of a changed load of burst workers, with the reasons and the costs so far, if known.

    >>> import numpy as np
    >>> some = Offloading(np.array([0.5, 0.5]), 4, 9, rate=2e3, redirected=1e3, load=0.7, load_without=1.4)
    >>> print(offload(At("sum", 0.0), some, Money(0.02, 0.001)).text)
    functions carry 1,000 of 2,000 records/s, 4 at a time, 9 kept warm; the busiest host is at 70 % \
of its capacity instead of 140 % (by working time; a function is as fast as 1.00 hosts, assumed). \
so far 0.0210 USD: hosts 0.0200, functions 0.0010
    """
    shares = offloading.shares[offloading.shares > 0].tolist()
    facts = {
        "functions": offloading.workers,
        "warm": offloading.warm,
        "slots": slots_to_text([n for n, share in enumerate(offloading.shares) if share > 0]),
        "share_least": finite(min(shares, default=0.0), 4),
        "share_most": finite(max(shares, default=0.0), 4),
        "rate": finite(offloading.rate),
        "redirected": finite(offloading.redirected),
        "backlog": finite(offloading.backlog),
        "load": finite(offloading.load, 4),
        "load_without": finite(offloading.load_without, 4),
        "load_by": "cpu" if offloading.by_cpu else "working time",
        "cpu": None if offloading.cpu is None else finite(offloading.cpu, 4),
        "speed": finite(offloading.speed, 4),
        "speed_by": "measured" if offloading.speed_measured else "assumed",
        "lasts": offloading.lasts,
        "reasons": list(offloading.reasons),
        "money": None if money is None else money.facts(),
        "dry_run": dry_run,
    }
    load = "functions carry nothing"
    if offloading.carries:
        load = (
            f"functions carry {offloading.redirected:,.0f} of {offloading.rate:,.0f} records/s, "
            f"{offloading.workers:,} at a time, {offloading.warm:,} kept warm; the busiest host is "
            f"at {100 * offloading.load:.0f} % of its capacity instead of "
            f"{100 * offloading.load_without:.0f} % (by {_basis(offloading)})"
        )
    spent = [] if money is None else [f"so far {money}"]
    would = "dry run, would be: " if dry_run else ""
    text = would + ". ".join([load, *offloading.reasons, *spent])
    return at.entry("offload", text, facts)


def _basis(offloading: Offloading) -> str:
    """What loads and speeds in a decision come from."""
    load, cpu = "working time", f"{100 * (offloading.cpu or 0.0):.0f} %"
    if offloading.by_cpu:
        load = f"CPU, measured at {cpu}"
    elif offloading.cpu is not None:
        load = f"working time, since CPU is only {cpu}"
    origin = "measured" if offloading.speed_measured else "assumed"
    return f"{load}; a function is as fast as {offloading.speed:.2f} hosts, {origin}"


def _bounds(bounds: Bounds) -> dict[str, Any]:
    facts = {"latency_ms": bounds.latency_ms, "window_ms": bounds.window_ms}
    names = ("alert_ms", "margin", "at_least", "at_most", "share")
    return facts | {name: getattr(bounds, name) for name in names}


def _figures(host: HostHealth) -> dict[str, Any]:
    facts = host._asdict()
    return {name: finite(x) if isinstance(x, float) else x for name, x in facts.items()}


def _load(host: HostHealth) -> float:
    """Arrivals over service rate of a host; -1 if its service rate is unknown."""
    return host.rate / host.service_rate if host.service_rate > 0 else -1.0


def _treatment_facts(treatments: Treatments) -> list[dict[str, Any]]:
    return [treatment.facts() for treatment in treatments]


def _story(treatments: Treatments, end: str) -> str:
    return ". ".join([*map(str, treatments), end])

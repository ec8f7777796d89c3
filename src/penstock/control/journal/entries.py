"""What control tells the journal besides its decisions: one function for each event.

Figures that are not known, or without end, are None in facts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from penstock.control.diagnose.outlook import finite, milliseconds_text
from penstock.control.journal.entry import Entry
from penstock.control.money import Money
from penstock.control.treat.decision import Bounds, Treatment
from penstock.control.treat.offloading import Offloading
from penstock.model import HostId, StepId
from penstock.plan.slots import slots_to_text

Treatments = Sequence[Treatment]


def refused(
    step: StepId, now_ms: float, why: str, *, wanted: str = "", epoch: int | None = None
) -> Entry:
    """What was wanted is not being done: a host that cannot be started, a limit, a request.

    >>> refused(StepId("sum"), 0.0, "at most 4 hosts are allowed", wanted="a fifth host").text
    'a fifth host: at most 4 hosts are allowed'
    """
    text = f"{wanted}: {why}" if wanted else why
    return Entry(now_ms, epoch, step, "refused", text, {"why": why, "wanted": wanted})


def began(
    step: StepId,
    now_ms: float,
    treatments: Treatments,
    latency_ms: float,
    *,
    revised: bool = False,
    epoch: int | None = None,
) -> Entry:
    """The data plane took up these treatments; `latency_ms` is the step's at this moment.

    If `revised`, they take the place of what began before and had not taken effect.

    >>> move = Treatment("balance", (1, 2), HostId("sum/0"), HostId("sum/1"), "")
    >>> began(StepId("sum"), 0.0, [move], 640.0).text
    'balance: slots 1-2 from sum/0 to sum/1. latency 640 ms'
    """
    facts = {
        "treatments": _told(treatments),
        "latency_ms": finite(latency_ms),
        "revised": revised,
    }
    instead = "instead of what began before. " if revised else ""
    text = instead + _story(treatments, f"latency {milliseconds_text(latency_ms)}")
    return Entry(now_ms, epoch, step, "began", text, facts)


def done(
    step: StepId,
    now_ms: float,
    treatments: Treatments,
    began_ms: float,
    latency_ms: float,
    *,
    hosts: Sequence[HostId] = (),
    epoch: int | None = None,
) -> Entry:
    """These treatments are in force; `hosts` are those that the step has now.

    >>> move = Treatment("balance", (1, 2), HostId("sum/0"), HostId("sum/1"), "")
    >>> done(StepId("sum"), 9_200.0, [move], 8_000.0, 700.0).text
    'balance: slots 1-2 from sum/0 to sum/1. took 1,200 ms, latency 700 ms'
    """
    took_ms = now_ms - began_ms
    facts = {
        "treatments": _told(treatments),
        "took_ms": finite(took_ms),
        "latency_ms": finite(latency_ms),
        "hosts_now": list(hosts),
    }
    told = f"took {milliseconds_text(took_ms)}, latency {milliseconds_text(latency_ms)}"
    told += f", hosts {', '.join(hosts)}" if hosts else ""
    return Entry(now_ms, epoch, step, "done", _story(treatments, told), facts)


def failed(
    step: StepId, now_ms: float, treatments: Treatments, why: str, *, epoch: int | None = None
) -> Entry:
    """These treatments were given up; the next decision begins from what there is then.

    >>> failed(StepId("sum"), 0.0, [], "no core is free for a host").text
    'given up: no core is free for a host'
    """
    facts = {"treatments": _told(treatments), "why": why}
    return Entry(now_ms, epoch, step, "failed", _story(treatments, f"given up: {why}"), facts)


def outcome(
    step: StepId,
    now_ms: float,
    before_ms: float,
    latency_ms: float,
    bounds: Bounds,
    *,
    expected_ms: float = math.nan,
    epoch: int | None = None,
) -> Entry:
    """What treatments brought, a window after they were done.

    >>> from penstock.model import SLA
    >>> outcome(StepId("sum"), 0.0, 1_640.0, 180.0, Bounds(SLA(1000, 1000)), expected_ms=210.0).text
    'latency 180 ms instead of 1,640 ms, within the bound of 1,000 ms; expected 210 ms'
    """
    kept = latency_ms <= bounds.latency_ms
    bound = "" if math.isnan(latency_ms) else f", {'' if kept else 'not '}within the bound"
    text = (
        f"latency {milliseconds_text(latency_ms)} instead of {milliseconds_text(before_ms)}{bound}"
        + (f" of {milliseconds_text(bounds.latency_ms)}" if bound else "")
        + ("" if math.isnan(expected_ms) else f"; expected {milliseconds_text(expected_ms)}")
    )
    facts = {
        "before_ms": finite(before_ms),
        "latency_ms": finite(latency_ms),
        "expected_ms": finite(expected_ms),
        "bound_ms": bounds.latency_ms,
    }
    return Entry(now_ms, epoch, step, "outcome", text, facts)


def host_lost(
    step: StepId,
    now_ms: float,
    host: HostId,
    slots: Sequence[int],
    why: str,
    *,
    epoch: int | None = None,
) -> Entry:
    """A host died; its slots go to others.

    >>> host_lost(StepId("sum"), 0.0, HostId("sum/2"), [4, 5, 6], "its process ended").text
    'sum/2 with slots 4-6: its process ended'
    """
    owned = f"with slots {slots_to_text(slots)}" if len(slots) else "without slots"
    facts = {"host": host, "slots": slots_to_text(slots), "why": why}
    return Entry(now_ms, epoch, step, "host lost", f"{host} {owned}: {why}", facts)


def setting(
    step: StepId, now_ms: float, name: str, before: Any, now: Any, *, epoch: int | None = None
) -> Entry:
    """What the step must keep to, or is steered by, was changed. Both values as JSON has them.

    >>> setting(StepId("sum"), 0.0, "at_most", 4, 8).text
    'at_most is 8, was 4'
    """
    facts = {"name": name, "before": before, "now": now}
    return Entry(now_ms, epoch, step, "setting", f"{name} is {now}, was {before}", facts)


def hot_key(
    step: StepId,
    now_ms: float,
    slot: int,
    key: str,
    rate: float,
    text: str,
    *,
    epoch: int | None = None,
) -> Entry:
    """One key alone is more than a host can take; `text` says what is done, or can be done.

    >>> hot_key(StepId("sum"), 0.0, 12, "user=42", 5_200.0, "split in two stages").text
    'user=42 in slot 12, 5,200 records/s: split in two stages'
    """
    facts = {"slot": int(slot), "key": key, "rate": finite(rate), "text": text}
    told = f"{key} in slot {slot}, {rate:,.0f} records/s: {text}"
    return Entry(now_ms, epoch, step, "hot key", told, facts)


def offload(
    step: StepId,
    now_ms: float,
    offloading: Offloading,
    money: Money | None = None,
    *,
    epoch: int | None = None,
    dry_run: bool = False,
) -> Entry:
    """What functions carry from now on, why, and what the run has cost so far, if that is known.

    >>> import numpy as np
    >>> some = Offloading(np.array([0.5, 0.5]), 4, 9, rate=2e3, redirected=1e3, load=0.7, load_without=1.4)
    >>> print(offload(StepId("sum"), 0.0, some, Money(0.02, 0.001)).text)
    functions carry 1,000 of 2,000 records/s, 4 at a time, 9 kept warm; the busiest host is at 70 % \
of its capacity instead of 140 %. so far 0.0210 USD: hosts 0.0200, functions 0.0010
    """
    shares = offloading.shares[offloading.shares > 0].tolist()
    facts = {
        "functions": offloading.functions,
        "warm": offloading.warm,
        "slots": slots_to_text([n for n, share in enumerate(offloading.shares) if share > 0]),
        "share_least": finite(min(shares, default=0.0), 4),
        "share_most": finite(max(shares, default=0.0), 4),
        "rate": finite(offloading.rate),
        "redirected": finite(offloading.redirected),
        "backlog": finite(offloading.backlog),
        "load": finite(offloading.load, 4),
        "load_without": finite(offloading.load_without, 4),
        "lasts": offloading.lasts,
        "reasons": list(offloading.reasons),
        "money": None if money is None else money.facts(),
        "dry_run": dry_run,
    }
    told = "functions carry nothing"
    if offloading.carries:
        told = (
            f"functions carry {offloading.redirected:,.0f} of {offloading.rate:,.0f} records/s, "
            f"{offloading.functions:,} at a time, {offloading.warm:,} kept warm; the busiest host is "
            f"at {100 * offloading.load:.0f} % of its capacity instead of "
            f"{100 * offloading.load_without:.0f} %"
        )
    spent = [] if money is None else [f"so far {money}"]
    would = "would be so, were this no dry run: " if dry_run else ""
    text = would + ". ".join([told, *offloading.reasons, *spent])
    return Entry(now_ms, epoch, step, "offload", text, facts)


def _told(treatments: Treatments) -> list[dict[str, Any]]:
    return [treatment.facts() for treatment in treatments]


def _story(treatments: Treatments, end: str) -> str:
    return ". ".join([*map(str, treatments), end])

"""The journal in plain sentences, for people who have never seen the code. Pure.

`sentence` says one entry. `story` joins the entries of each treatment, from the decision to its outcome a
window later, into one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.control.journal.entry import Entry

Facts = dict[str, Any]

_MOST_PARTS = 4
"""Ranges of slots, or moves, that a sentence names one by one. More are counted."""


@dataclass(frozen=True)
class Told:
    """An event of a step in words."""

    time_ms: float
    step: str
    kind: str
    """Kind of the journal entry that it begins with, such as "decided" or "host lost"."""
    text: str
    """One sentence, without its time."""
    important: bool
    """Whether something was done, went wrong, or needs attention."""


def sentence(entry: Entry) -> str:
    """One journal entry as a plain sentence. An entry of an unknown kind, or of another release, keeps its
    own text.

    >>> sentence(Entry(0.0, 1, "sum", "setting", "", {"name": "at_most", "before": 4, "now": 8}))
    'the maximum number of hosts is 8, was 4'
    """
    say = _SAID.get(entry.event)
    return entry.text if say is None else _said(entry, lambda: say(entry.facts, entry.step))


def is_important(entry: Entry) -> bool:
    """Whether an entry says that something was done, went wrong, or needs attention. A change of health that
    led to nothing does not, nor does a step's share of the SLA, which changes by itself."""
    if entry.event == "decided":
        return bool(entry.facts.get("treatments"))
    if entry.event == "setting":
        return entry.facts.get("name") != "share"
    return entry.event not in ("began", "done", "outcome")


def story(entries: Sequence[Entry]) -> list[Told]:
    """The journal, with one item for each treatment instead of one for each of its entries. In order of
    time; a treatment has the time of its decision."""
    items: list[Entry | _Course] = []
    courses: dict[str, _Course] = {}
    """Step -> its newest treatment."""
    for entry in entries:
        course = courses.get(entry.step)
        treats = bool(entry.facts.get("treatments")) and not entry.facts.get("dry_run")
        if entry.event == "decided" and treats:
            courses[entry.step] = _Course(entry)
            items.append(courses[entry.step])
        elif entry.event in ("began", "done", "failed", "outcome") and course is not None:
            course.entries[entry.event] = entry
        else:
            items.append(entry)
    return [item.told() if isinstance(item, _Course) else _told(item) for item in items]


def _told(entry: Entry) -> Told:
    important = is_important(entry)
    return Told(entry.time_ms, entry.step, str(entry.event), sentence(entry), important)


class _Course:
    """A treatment: its decision, and what became of it."""

    def __init__(self, decided: Entry) -> None:
        self.decided = decided
        self.entries: dict[str, Entry] = {}

    def told(self) -> Told:
        entry = self.decided
        facts, step = entry.facts, entry.step
        text = _said(
            entry, lambda: _decided(facts, step, self._named(), self._verb()) + self._end()
        )
        return Told(entry.time_ms, entry.step, "decided", text, important=True)

    def _named(self) -> list[Facts] | None:
        """The treatments with the names of new hosts; None before they began."""
        began = self.entries.get("began")
        return None if began is None else began.facts["treatments"]

    def _verb(self) -> str:
        if "failed" in self.entries:
            return "wanted to move"
        return "moved" if self.entries.keys() & {"done", "outcome"} else "moves"

    def _end(self) -> str:
        if failed := self.entries.get("failed"):
            return f"; given up: {failed.facts['why']}"
        if outcome := self.entries.get("outcome"):
            latency_ms = outcome.facts["latency_ms"]
            if latency_ms is None:
                return ""
            missed = latency_ms > outcome.facts["bound_ms"]
            bound = f", above the bound of {span(outcome.facts['bound_ms'])}" if missed else ""
            return f", a window later it was {span(latency_ms)}{bound}"
        if done := self.entries.get("done"):
            return f"; done within {span(done.facts['took_ms'])}"
        return ""


def _said(entry: Entry, say: Callable[[], str]) -> str:
    """A sentence, or the entry's own text if its facts are not those of this release."""
    try:
        return say()
    except (KeyError, TypeError, ValueError, AttributeError):
        return entry.text


# -- the kinds of entries


def _decided(facts: Facts, step: str, named: list[Facts] | None = None, verb: str = "moves") -> str:
    treatments = facts["treatments"] if named is None else named
    if not treatments:
        return _health(facts, step)
    figures = {host["host"]: host for host in facts["hosts"]}
    sources = list(dict.fromkeys(one["source"] for one in treatments if one["source"] in figures))
    grows = [one for one in treatments if one["kind"] != "scale_in"]
    if grows or not sources:
        severe = [host for host in sources if figures[host]["health"] == "severe"]
        why = _trouble([figures[host] for host in severe or sources], step)
    else:
        why = f"{_hosts(sources)} no longer needed"
    verb = "would have moved" if facts["dry_run"] else verb
    new = {one["target"] for one in facts["treatments"] if one["target"].startswith("new/")}
    if named is not None:
        pairs = zip(facts["treatments"], named, strict=False)
        new = {after["target"] for before, after in pairs if before["target"] in new}
    expected = facts.get("expected", {}).get("latency_ms")
    projected = "" if expected is None else f"; projected {span(expected)}"
    return f"{why}; {verb} {_moves(treatments, new)}{projected}"


def _trouble(hosts: list[Facts], step: str) -> str:
    """The hosts that slots leave, their health, and the figures of the busiest."""
    if not hosts:
        return f"step {step}"
    first = max(hosts, key=lambda host: (host["rate"] or 0.0) / (host["service_rate"] or 1e12))
    whose = "" if len(hosts) == 1 else f"host {first['host']} has "
    return f"{_hosts([host['host'] for host in hosts])} {first['health']}: {whose}{_load(first)}"


def _load(host: Facts) -> str:
    possible = host["service_rate"]
    known = "capacity not known yet" if possible is None else f"{possible:,.0f} possible"
    return f"{host['rate'] or 0.0:,.0f} records/s arriving, {known}"


def _moves(treatments: list[Facts], new: set[str]) -> str:
    """Slots and the hosts that get them. `new` are hosts that are started for this."""
    by_target: dict[str, list[str]] = {}
    for one in treatments:
        by_target.setdefault(one["target"], []).append(one["slots"])
    if len(by_target) > _MOST_PARTS:
        slots = sum(_count(",".join(texts)) for texts in by_target.values())
        some = f", {len(new)} of them new" if new else ""
        return f"{slots:,} slots to {len(by_target):,} hosts{some}"
    moves = []
    for target, texts in by_target.items():
        started = "a new host" if target.startswith("new/") else f"the new host {target}"
        host = started if target in new else f"host {target}"
        moves.append(f"{_slots(','.join(texts))} to {host}")
    return _and(moves)


def _health(facts: Facts, step: str) -> str:
    """A decision without treatments."""
    hosts, health = facts["hosts"], facts["health"]
    busiest = max(hosts, key=lambda host: host["rate"] or 0.0, default=None)
    if health == "severe":
        ill = [host for host in hosts if host["health"] == "severe"]
        # Reasons that repeat the figures are left out.
        others = [why for why in facts["reasons"] if " is severe: " not in why]
        reason = f": {others[0].rstrip('. ')}" if others else ""
        return f"{_trouble(ill or hosts[:1], step)}; nothing can be done yet{reason}"
    words = "healthy" if health == "good" else "close to its limits"
    if busiest is None or not busiest["rate"]:
        reasons = [why.rstrip(". ") for why in facts["reasons"]]
        return f"step {step}: {reasons[0]}" if reasons else f"step {step} is {words}"
    return f"step {step} is {words}; its busiest host {busiest['host']} has {_load(busiest)}"


def _refused(facts: Facts, step: str) -> str:
    wanted = f"{facts['wanted']}: " if facts["wanted"] else ""
    return f"step {step}: not done: {wanted}{facts['why']}"


def _began(facts: Facts, step: str) -> str:
    return f"step {step}: moving {_moves(facts['treatments'], set())} has begun"


def _done(facts: Facts, step: str) -> str:
    return (
        f"step {step}: moved {_moves(facts['treatments'], set())} within {span(facts['took_ms'])}"
    )


def _failed(facts: Facts, step: str) -> str:
    moves = f"moving {_moves(facts['treatments'], set())} was " if facts["treatments"] else ""
    return f"step {step}: {moves}given up: {facts['why']}"


def _outcome(facts: Facts, step: str) -> str:
    before, now = span(facts["before_ms"]), span(facts["latency_ms"])
    return f"step {step}: a window after its moves the latency is {now}, it was {before}"


def _host_lost(facts: Facts, step: str) -> str:
    owned = f" with {_slots(facts['slots'])}" if facts["slots"] else ""
    return f"host {facts['host']}{owned} was lost: {facts['why']}"


def _host_leaves(facts: Facts, step: str) -> str:
    same = facts["by"] == facts["host"]
    place = "it starts again elsewhere" if same else f"host {facts['by']} takes its place"
    with_slots = f" with {_slots(facts['slots'])}" if facts["slots"] else ""
    return f"host {facts['host']} must go: {facts['why']}; {place}{with_slots}"


_SETTINGS = {
    "sla": "the SLA",
    "policy": "the scaling policy",
    "at_least": "the minimum number of hosts",
    "at_most": "the maximum number of hosts",
    "margin": "the margin that hosts keep in reserve",
    "alert": "the latency that alerts the controller",
    "functions_at_most": "the maximum number of functions",
    "patience": "the time until hosts replace functions",
}


def _setting(facts: Facts, step: str) -> str:
    name, before, now = facts["name"], facts["before"], facts["now"]
    if name == "dry_run":
        return "the controller was paused" if now else "the controller is at work again"
    if name == "share":
        return (
            f"step {step} may use {100 * now:.0f} % of the SLA's latency, was {100 * before:.0f} %"
        )
    words = _SETTINGS.get(name, name.replace("_", " "))
    return f"{words} is {_value(now)}, was {_value(before)}"


def _hot_key(facts: Facts, step: str) -> str:
    return (
        f"key {facts['key']} of step {step} is hot: {facts['rate']:,.0f} records/s in slot "
        f"{facts['slot']}, {facts['text']}"
    )


def _split(facts: Facts, step: str) -> str:
    if "united" in facts:
        return f"slots {facts['united']} of step {step} are whole again: their load is low"
    return (
        f"slot {facts['slot']} of step {step} is split into {len(facts['parts'])} slots: it has "
        f"{facts['rate']:,.0f} records/s, more than any host can take, and no single key explains it"
    )


def _couriers(facts: Facts, step: str) -> str:
    before, now = facts["before"], facts["now"]
    count = f"{now} courier{'' if now == 1 else 's'}"
    change = f"{count} read the input, before {before}" if now != before else (
        f"the input is divided anew among {count}"
    )  # fmt: skip
    return f"{'would be: ' if facts['dry_run'] else ''}{change}: {facts['why']}"


def _offload(facts: Facts, step: str) -> str:
    reason = f": {facts['reasons'][0].rstrip('. ')}" if facts["reasons"] else ""
    would = "would be: " if facts["dry_run"] else ""
    if not facts["redirected"]:
        return f"{would}functions carry nothing of step {step}{reason}"
    return (
        f"{would}functions carry {facts['redirected']:,.0f} of {facts['rate']:,.0f} records/s of step "
        f"{step}, {facts['functions']:,} at a time; the busiest host is at "
        f"{100 * facts['load']:.0f} % of what it can do instead of "
        f"{100 * facts['load_without']:.0f} %{reason}"
    )


_SAID: dict[str, Callable[[Facts, str], str]] = {
    "decided": _decided, "refused": _refused, "began": _began, "done": _done, "failed": _failed,
    "outcome": _outcome, "host lost": _host_lost, "host leaves": _host_leaves, "setting": _setting,
    "hot key": _hot_key, "split": _split, "couriers": _couriers, "offload": _offload,
}  # fmt: skip


# -- words and figures


def span(ms: float | None) -> str:
    """A duration as people say it.

    >>> span(42.0), span(430.0), span(2_040.0), span(75_000.0), span(7_500_000.0), span(None)
    ('42 ms', '0.4 s', '2.0 s', '75 s', '2 h 5 min', 'not known')
    """
    if ms is None:
        return "not known"
    if ms < 100:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1000:.1f} s" if ms < 10_000 else f"{ms / 1000:.0f} s"
    minutes = round(ms / 60_000)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _hosts(hosts: list[str]) -> str:
    if len(hosts) > _MOST_PARTS:
        return f"{len(hosts):,} hosts"
    return f"host {hosts[0]}" if len(hosts) == 1 else f"hosts {_and(hosts)}"


def _slots(text: str) -> str:
    parts = text.split(",")
    if len(parts) > _MOST_PARTS:
        return f"{_count(text):,} slots"
    single = len(parts) == 1 and "-" not in text
    return f"slot {text}" if single else f"slots {_and(parts)}"


def _count(text: str) -> int:
    """The number of slots in a text such as 0-3,20."""
    ends = (part.split("-") for part in text.split(",") if part)
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)


def _and(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _value(value: Any) -> str:
    return "not set" if value is None else f"{value}"

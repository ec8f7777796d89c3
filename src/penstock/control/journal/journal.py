"""The journal: all decisions and actions of control, so that a reader can follow each decision.

A treatment has these entries, all created by `entries`:

    decided     the health of the step, the figures of its hosts, the treatments, the reasons, and
                the expected effect
    began       the start in the data plane, and the latency at that time
    done        the time when they were in force, and how long that took (or failed, and why)
    outcome     the latency before and after, one window later

Repetitions are left out: see `worth_telling`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from penstock.control.examine.vitals import Vitals
from penstock.control.journal.entries import decided
from penstock.control.journal.entry import Entry
from penstock.control.treat.decision import Bounds, Decision

REMIND_MS = 60_000.0
"""Milliseconds after which a problem that persists is journalled again."""
_WAVER_MS = 10_000.0
"""Minimum milliseconds between entries of a step that alternates between good and moderate."""
_FIGURES = re.compile(r"(?<![\w/])\d[\d,.]*")
"""Numbers, except those in the names of hosts."""


class Journal:
    """The newest entries, and a sink that receives every new one. Written by one thread.

    >>> entries: list[Entry] = []
    >>> journal = Journal(sink=entries.append)
    >>> journal.add(Entry(0.0, 1, "sum", "refused", "5 hosts: at most 4 are allowed"))
    True
    >>> journal.add(Entry(250.0, 2, "sum", "refused", "6 hosts: at most 4 are allowed"))
    False
    >>> [entry.epoch for entry in entries], len(journal)
    ([1], 1)
    """

    def __init__(self, most: int = 1_000, sink: Callable[[Entry], None] | None = None) -> None:
        self._entries: deque[Entry] = deque(maxlen=most)
        self._newest: dict[tuple[str, str, str | None], Entry] = {}
        self._sink = sink

    def add(self, entry: Entry) -> bool:
        """Add an entry and pass it to the sink, unless it repeats another. Returns whether it was added."""
        place = (entry.step, entry.event, entry.facts.get("key"))
        if not worth_telling(self._newest.get(place), entry):
            return False
        self._newest[place] = entry
        self._entries.append(entry)
        if self._sink is not None:
            self._sink(entry)
        return True

    def decided(
        self,
        vitals: Vitals,
        bounds: Bounds,
        decision: Decision,
        *,
        epoch: int | None = None,
        dry_run: bool = False,
    ) -> bool:
        """Add the entry of a decision. Costs almost nothing while the step is healthy."""
        newest = self._newest.get((vitals.step, "decided", None))
        quiet = not (decision.treatments or decision.reasons or decision.hot_slots)
        calm = quiet and decision.health != "severe"
        if calm and newest is not None and _Gist.of(newest) == _Gist(decision.health):
            return False
        return self.add(decided(vitals, bounds, decision, epoch=epoch, dry_run=dry_run))

    def last(self, count: int) -> list[Entry]:
        """The newest `count` entries, oldest first. Any thread may call it."""
        return list(self._entries)[-count:] if count > 0 else []

    def __len__(self) -> int:
        return len(self._entries)


class _Gist(NamedTuple):
    """The content of a decision without its figures, to compare decisions by."""

    health: str
    treatments: tuple[tuple[str, str, str], ...] = ()
    reasons: tuple[str, ...] = ()
    hot_slots: str = ""

    @staticmethod
    def of(entry: Entry) -> _Gist:
        facts = entry.facts
        return _Gist(
            facts["health"],
            tuple((t["kind"], t["source"], t["target"]) for t in facts["treatments"]),
            tuple(_without_figures(reason) for reason in facts["reasons"]),
            facts["hot_slots"],
        )


def worth_telling(previous: Entry | None, entry: Entry) -> bool:
    """Whether an entry adds something to `previous`, the last one of the same step, event and hot key.

    Decisions repeat every epoch, with slightly different figures. A decision is worth an entry if it has
    treatments (in a dry run: other ones than before), or if the health of the step, its hot slots or the
    reasons changed. It is repeated once a minute while the step is severe. The same refusal, the same
    hot key and the same dry run of couriers are repeated once a minute. All other entries are added.

    >>> full = Entry(0.0, 1, "sum", "refused", "5 hosts: at most 4 are allowed")
    >>> again = Entry(250.0, 2, "sum", "refused", "5 hosts: at most 4 are allowed")
    >>> worth_telling(None, full), worth_telling(full, again)
    (True, False)
    """
    repeats = entry.event in ("decided", "refused", "hot key") or (
        entry.event == "couriers" and entry.facts["dry_run"]
    )
    if previous is None or not repeats:
        return True
    passed = entry.time_ms - previous.time_ms
    if entry.event != "decided":
        same = _without_figures(entry.text) == _without_figures(previous.text)
        return not same or passed >= REMIND_MS
    if entry.facts["treatments"] and not entry.facts["dry_run"]:
        return True
    before, now = _Gist.of(previous), _Gist.of(entry)
    trouble = "severe" in (before.health, now.health)
    if before == now:
        return trouble and passed >= REMIND_MS
    wavers = before == now._replace(health=before.health) and not trouble
    return not wavers or passed >= _WAVER_MS


def _without_figures(text: str) -> str:
    return _FIGURES.sub("#", text)

"""The journal: everything that control decided and did, so that a reader can follow each decision.

The story of a treatment has these entries, all made by `entries`:

    decided     the health of the step and the figures of its hosts, the treatments, the reasons, and
                what the treatments are expected to bring
    began       when the data plane took them up, and the latency at that moment
    done        when they were in force, and how long that took (or failed, and why)
    outcome     a window later: the latency before and after

What repeats itself is told once: `worth_telling`.
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
"""Trouble that goes on is told again after so long."""
_WAVER_MS = 10_000.0
"""A step may waver between good and moderate: told at most this often."""
_FIGURES = re.compile(r"(?<![\w/])\d[\d,.]*")
"""Numbers, but not those in the names of hosts."""


class Journal:
    """The newest entries, and a sink that gets every one of them. Written by one thread.

    >>> told: list[Entry] = []
    >>> journal = Journal(sink=told.append)
    >>> journal.add(Entry(0.0, 1, "sum", "refused", "5 hosts: at most 4 are allowed"))
    True
    >>> journal.add(Entry(250.0, 2, "sum", "refused", "6 hosts: at most 4 are allowed"))
    False
    >>> [entry.epoch for entry in told], len(journal)
    ([1], 1)
    """

    def __init__(self, most: int = 1_000, sink: Callable[[Entry], None] | None = None) -> None:
        self._entries: deque[Entry] = deque(maxlen=most)
        self._newest: dict[tuple[str, str, str | None], Entry] = {}
        self._sink = sink

    def add(self, entry: Entry) -> bool:
        """Keep an entry and hand it to the sink, if it is worth telling; whether it was."""
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
        """Add the entry of a decision. Costs next to nothing while all is calm."""
        newest = self._newest.get((vitals.step, "decided", None))
        quiet = not (decision.treatments or decision.reasons or decision.hot_slots)
        calm = quiet and decision.health != "severe"
        if calm and newest is not None and _Gist.of(newest) == _Gist(decision.health):
            return False
        return self.add(decided(vitals, bounds, decision, epoch=epoch, dry_run=dry_run))

    def last(self, count: int) -> list[Entry]:
        """The newest entries, oldest first. Any thread may ask."""
        return list(self._entries)[-count:] if count > 0 else []

    def __len__(self) -> int:
        return len(self._entries)


class _Gist(NamedTuple):
    """What makes one decision differ from another, whatever its figures."""

    health: str
    treatments: tuple[tuple[str, str, str], ...] = ()
    reasons: tuple[str, ...] = ()
    hot_slots: str = ""

    @staticmethod
    def of(entry: Entry) -> _Gist:
        facts = entry.facts
        return _Gist(
            facts["health"],
            tuple((one["kind"], one["source"], one["target"]) for one in facts["treatments"]),
            tuple(_without_figures(reason) for reason in facts["reasons"]),
            facts["hot_slots"],
        )


def worth_telling(previous: Entry | None, entry: Entry) -> bool:
    """Whether an entry says more than `previous`, the one told before of the same step and event
    (and the same hot key).

    Decisions repeat themselves every epoch while nothing changes, with slightly other figures. One
    is told if it wants something done (in a dry run: something else than before), if the health of
    the step, its hot slots or the reasons changed, and once a minute as long as it is severe.
    What is refused for the same reason, the same of a hot key, and what a dry run would do with couriers is
    told once a minute. All else is told.

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

"""Keys that alone are too much for a host.

A slot can be moved, but a key cannot be cut in two: if one brings more records than a host can take,
no treatment helps. What does, where partial states of a key can be merged, is to work in two stages:
couriers combine the rows of each key first, and its host gets one record of each task. A policy names
slots that are too hot for any host; couriers then count the keys in them; `HotKeys` says which is it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.control.examine.vitals import Floats, Ints
from penstock.model import StepId
from penstock.wire.report import HotKeyCount

_EPOCHS = 5
"""Epochs by whose counts keys are judged, and for which they are watched after trouble has gone."""
_LONGEST_MS = 24 * 3_600_000.0


@dataclass(frozen=True)
class HotKey:
    """A key that alone is more than a host can take.

    >>> HotKey(StepId("sum"), 12, "user=42", 5_200.0, 1.3, merges=False).text.split(", ")[0]
    '130 % of what a host can take that does nothing else'
    """

    step: StepId
    slot: int
    key: str
    rate: float
    """Records a second; at least that many."""
    share_of_host: float
    """The same over the service rate of the fastest host."""
    merges: bool
    """Whether the step's state merges, so that the key can be split in two stages."""
    two_stage: bool = False
    """Whether it is, from the next epoch on."""

    @property
    def text(self) -> str:
        """What that means and what can be done, to be read after the key and its rate."""
        much = f"{self.share_of_host * 100:.0f} % of what a host can take that does nothing else"
        if self.two_stage:
            return (
                f"{much}; it is split in two stages: couriers combine its rows first, and its "
                "host gets one record of each task"
            )
        if self.merges:
            return f"{much}; it would be split in two stages, couriers combining its rows first"
        return (
            f"{much}, and no treatment helps: all records of a key go to one host, and the state of "
            "this step does not merge. Make several keys of it (a sub-key, with a later step to put "
            "the results together), send fewer of its records, or use faster hosts"
        )

    def facts(self) -> dict[str, Any]:
        """As the status of a query shows it."""
        names = ("slot", "key", "rate", "share_of_host", "two_stage", "text")
        return {name: getattr(self, name) for name in names}


def find(
    step: StepId,
    counts: Mapping[tuple[int, str], int],
    load: Ints,
    rate: Floats,
    service_rate: float,
    margin: float,
    merges: bool,
) -> tuple[HotKey, ...]:
    """The keys that a host cannot take, less a margin; the hottest first.

    `counts` are records by slot and key, `load` all records by slot, of the same epochs; `rate` is
    records a second by slot now, and `service_rate` that of the fastest host.

    >>> counts = {(1, "user=42"): 90, (1, "user=7"): 10}
    >>> rate = np.array([10.0, 1_000.0])
    >>> [hot] = find(StepId("sum"), counts, np.array([50, 100]), rate, 750.0, 0.2, merges=True)
    >>> hot.key, hot.rate, hot.share_of_host
    ('user=42', 900.0, 1.2)
    """
    found = []
    for (slot, key), count in counts.items():
        brings = float(rate[slot]) * count / max(int(load[slot]), count)
        if brings > (1 - margin) * service_rate > 0:
            found.append(HotKey(step, slot, key, brings, brings / service_rate, merges))
    return tuple(sorted(found, key=lambda hot: -hot.rate))


class HotKeys:
    """The hot keys of one step over time: what couriers shall watch, and whether in two stages.

    After each epoch call `note`, then `look`; then the plan of the next one takes `watched` and
    `two_stage`. Pure; used by one thread at a time.

    When a key is split, its host no longer sees how much comes of it. So it stays split for a while
    (`hold_ms`), and is then tried as it was; each time that it is found to be as hot as ever, it
    stays split for twice as long.

    >>> hot = HotKeys(StepId("sum"), slots=2, merges=True)
    >>> rate = np.array([10.0, 1_000.0])
    >>> hot.look(0.0, [1], rate, service_rate=750.0, margin=0.2), hot.watched
    ((), (1,))
    >>> hot.note([HotKeyCount("sum", 1, "user=42", 90)], np.array([50, 100]))
    >>> [key.key for key in hot.look(250.0, [1], rate, service_rate=750.0, margin=0.2)]
    ['user=42']
    >>> hot.two_stage
    True
    """

    def __init__(self, step: StepId, slots: int, merges: bool, hold_ms: float = 600_000.0) -> None:
        self._step, self._slots, self._merges = step, slots, merges
        self._hold_ms, self._until_ms = hold_ms, -np.inf
        self._noted: deque[tuple[Counter[tuple[int, str]], Ints]] = deque(maxlen=_EPOCHS)
        self._hot_slots: deque[frozenset[int]] = deque(maxlen=_EPOCHS)
        self.keys: tuple[HotKey, ...] = ()
        """Those that are too hot now, or are split since they were."""

    @property
    def watched(self) -> tuple[int, ...]:
        """The slots whose keys couriers shall count."""
        return tuple(sorted(frozenset().union(*self._hot_slots)))

    @property
    def two_stage(self) -> bool:
        """Whether couriers shall combine the rows of each key, whatever that costs them."""
        return any(key.two_stage for key in self.keys)

    def note(self, counts: Iterable[HotKeyCount], load: Ints) -> None:
        """What all couriers of an epoch counted: keys of watched slots, and all records by slot."""
        of_keys: Counter[tuple[int, str]] = Counter()
        for told in counts:
            if told.step == self._step:
                of_keys[told.slot, told.key] += told.count
        watched = np.zeros(self._slots, np.bool_)
        watched[[slot for slot, _ in of_keys]] = True
        self._noted.append((of_keys, np.where(watched, load, 0)))

    def look(
        self,
        now_ms: float,
        hot_slots: Sequence[int],
        rate: Floats,
        service_rate: float,
        margin: float,
        dry_run: bool = False,
    ) -> tuple[HotKey, ...]:
        """What is too hot now: `keys`. `hot_slots` are those that a policy found too hot to move,
        `rate` is that of all slots, `service_rate` that of the fastest host; nan if not known.

        In a dry run nothing is split.
        """
        if self.two_stage and now_ms < self._until_ms:
            return self.keys
        self._hot_slots.append(frozenset(hot_slots))
        counts: Counter[tuple[int, str]] = Counter()
        load = np.zeros(self._slots, np.int64)
        for of_keys, of_slots in self._noted:
            counts.update(of_keys)
            load += of_slots
        self.keys = find(self._step, counts, load, rate, service_rate, margin, self._merges)
        if self.keys and self._merges and not dry_run:
            self._split(now_ms)
        return self.keys

    def _split(self, now_ms: float) -> None:
        self.keys = tuple(replace(key, two_stage=True) for key in self.keys)
        self._until_ms = now_ms + self._hold_ms
        self._hold_ms = min(2 * self._hold_ms, _LONGEST_MS)
        # what is counted from now on is combined, and says nothing of how hot a key is
        self._noted.clear()
        self._hot_slots.clear()

"""Hot keys: keys that alone overload a host.

A slot can be moved, but a key cannot be divided. If one key has more records than a host can process, no
treatment helps. If partial states of a key can be merged, processing it in two stages helps: couriers combine
its rows first, and its host gets one record from each task. A policy names slots that are too hot for any
host, couriers then count the keys in these slots, and `HotKeys` finds the hot ones.
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
"""Number of past epochs whose counts are used, and for which slots are watched after they cool down."""
_LONGEST_MS = 24 * 3_600_000.0


@dataclass(frozen=True)
class HotKey:
    """A key that alone overloads a host.

    >>> HotKey(StepId("sum"), 12, "user=42", 5_200.0, 1.3, merges=False).text.split(", ")[0]
    '130 % of the capacity of a host'
    """

    step: StepId
    slot: int
    key: str
    rate: float
    """Arrivals of the key in records per second; a lower limit."""
    share_of_host: float
    """`rate` over the service rate of the fastest host."""
    merges: bool
    """Whether the step's state merges, so that the key can be split in two stages."""
    two_stage: bool = False
    """Whether the key is split in two stages from the next epoch on."""

    @property
    def text(self) -> str:
        """The load of the key and what can be done, to be read after the key and its rate."""
        load = f"{self.share_of_host * 100:.0f} % of the capacity of a host"
        if self.two_stage:
            return (
                f"{load}; it is split in two stages: couriers combine its rows first, and its "
                "host gets one record from each task"
            )
        if self.merges:
            return (
                f"{load}; it would be split in two stages, with couriers combining its rows first"
            )
        return (
            f"{load}, and no treatment helps: all records of a key go to one host, and the state of "
            "this step does not merge. Divide it into several keys (add a sub-key, and a later step "
            "that combines the results), send fewer of its records, or use faster hosts"
        )

    def facts(self) -> dict[str, Any]:
        """JSON values for the status of a query."""
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
    """The keys that exceed the service rate of a host less the margin, hottest first.

    `counts` are records by slot and key, and `load` all records by slot, both of the same epochs. `rate` are
    the present arrivals by slot in records per second. `service_rate` is that of the fastest host.

    >>> counts = {(1, "user=42"): 90, (1, "user=7"): 10}
    >>> rate = np.array([10.0, 1_000.0])
    >>> [hot] = find(StepId("sum"), counts, np.array([50, 100]), rate, 750.0, 0.2, merges=True)
    >>> hot.key, hot.rate, hot.share_of_host
    ('user=42', 900.0, 1.2)
    """
    hot = []
    for (slot, key), count in counts.items():
        brings = float(rate[slot]) * count / max(int(load[slot]), count)
        if brings > (1 - margin) * service_rate > 0:
            hot.append(HotKey(step, slot, key, brings, brings / service_rate, merges))
    return tuple(sorted(hot, key=lambda key: -key.rate))


class HotKeys:
    """Tracks the hot keys of one step: the slots to watch, and whether to process keys in two stages.

    Call `note` and then `look` after each epoch. The plan of the next epoch uses `watched` and `two_stage`.
    Pure; used by one thread at a time.

    While a key is split, its host no longer sees all of its records. So the key stays split for `hold_ms`
    milliseconds, and is then tried without splitting. Each time it turns out to be still hot, it stays split
    for twice as long.

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
        self._hashes: dict[tuple[int, str], int] = {}
        """Hashes of counted keys."""
        self.keys: tuple[HotKey, ...] = ()
        """Keys that are hot now, or are split because they were."""

    def resize(self, slots: int) -> None:
        """Change the number of slots, because some were split or are whole again. Counts begin anew."""
        self._slots = slots
        self._forget()

    def _forget(self) -> None:
        self._noted.clear()
        self._hot_slots.clear()
        self._hashes.clear()

    def shares(self, slot: int) -> dict[int, float] | None:
        """Known keys of a slot by hash, with their shares of its records; None if they were not counted."""
        load = sum(int(of_slots[slot]) for _, of_slots in self._noted)
        counts: Counter[int] = Counter()
        for of_keys, _ in self._noted:
            for (of, key), count in of_keys.items():
                if of == slot and (of, key) in self._hashes:
                    counts[self._hashes[of, key]] += count
        return {hash: count / load for hash, count in counts.items()} if load and counts else None

    @property
    def watched(self) -> tuple[int, ...]:
        """Slots whose keys couriers should count."""
        return tuple(sorted(frozenset().union(*self._hot_slots)))

    @property
    def two_stage(self) -> bool:
        """Whether couriers should combine the rows of each key even where that costs them more time."""
        return any(key.two_stage for key in self.keys)

    def note(self, counts: Iterable[HotKeyCount], load: Ints) -> None:
        """Add the counts of an epoch: those of keys in watched slots, and all records by slot."""
        of_keys: Counter[tuple[int, str]] = Counter()
        if len(load) != self._slots:
            return  # of an epoch before slots were split
        for count in counts:
            if count.step == self._step and count.slot < self._slots:
                of_keys[count.slot, count.key] += count.count
                if count.hash:
                    self._hashes[count.slot, count.key] = count.hash
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
        """Update and return `keys`.

        `hot_slots` are the slots that a policy found too hot to move. `rate` are the arrivals of all slots in
        records per second. `service_rate` is that of the fastest host, nan if unknown. In a dry run, no key
        is split.
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
        # from now on rows are combined before they are counted, which hides how hot a key is
        self._forget()

"""The first place of all records that touched an entry in an epoch: what it gives has that place."""

from __future__ import annotations

import numpy as np
from numba import njit

from penstock.operators.places import Places
from penstock.state.arrays import Array, grown, more


class FirstPlaces:
    """The least place of each entry of a table, since the last `clear`.

    Entries are numbers that an undo of the table may give to other keys. So the hash of the key is
    kept beside the place: what was noted of another key is forgotten. What was noted of the same key
    before an undo stays, and does no harm: a channel that is applied again brings the same records.

    >>> first = FirstPlaces()
    >>> entries, hashes = np.array([4, 0, 4]), np.array([7, 9, 7], np.uint64)
    >>> first.note(entries, hashes, Places.of_records(1, np.array([20, 21, 22])))
    >>> first.note(entries[:1], hashes[:1], Places.of_records(0, np.array([33])))
    >>> first.of(np.array([0, 4]))
    Places([(1, 21), (0, 33)])
    """

    def __init__(self) -> None:
        self._round = 1
        self._rounds = np.zeros(0, np.int64)
        self._hashes = np.zeros(0, np.uint64)
        self._major, self._minor = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def clear(self) -> None:
        """An epoch opens, or was rolled back."""
        self._round += 1

    def note(self, entries: Array, hashes: Array, places: Places) -> None:
        """Records of these places touched these entries, whose keys have these hashes."""
        if not len(entries):
            return
        self._reserve(int(entries.max()) + 1)
        _note(
            entries, hashes, places.major, places.minor, self._round,
            self._rounds, self._hashes, self._major, self._minor,
        )  # fmt: skip

    def of(self, entries: Array) -> Places:
        """The first places of these entries; those that no record touched have the least of all."""
        if not len(entries):
            return Places.none()
        self._reserve(int(entries.max()) + 1)
        least = np.iinfo(np.int64).min
        noted = self._rounds[entries] == self._round
        return Places(
            np.where(noted, self._major[entries], least),
            np.where(noted, self._minor[entries], least),
        )

    def _reserve(self, room: int) -> None:
        used = len(self._rounds)
        if room > used:
            room = max(room, more(used))
            self._rounds = grown(self._rounds, used, room)
            self._hashes = grown(self._hashes, used, room)
            self._major = grown(self._major, used, room)
            self._minor = grown(self._minor, used, room)


@njit(cache=True, nogil=True)
def _note(entries, hashes, majors, minors, now, rounds, known, major, minor):  # type: ignore[no-untyped-def]
    for i in range(len(entries)):
        e = entries[i]
        fresh = rounds[e] != now or known[e] != hashes[i]
        if fresh or majors[i] < major[e] or (majors[i] == major[e] and minors[i] < minor[e]):
            rounds[e], known[e] = now, hashes[i]
            major[e], minor[e] = majors[i], minors[i]

"""Compiled loops over the marks of a table's entries."""

from __future__ import annotations

import numpy as np
from numba import njit

PRESENT, DIRTY, NEW = np.int32(1), np.int32(2), np.int32(4)
LOGGED, STAMP = np.int32(8), np.int32(16)
"""Bits of an entry's mark. The bits above them are the serial of the savepoint it was last logged for.

A DIRTY entry was touched in the current round. A NEW entry was created by an upsert in the current round.
A LOGGED entry is in the log of the current epoch."""
UNCHANGED, WAS_NOT = -1, -2
"""Results of `first_rows` for entries that are not in the log: not touched, or not present before."""


@njit(cache=True, nogil=True)
def touch(  # type: ignore[no-untyped-def]
    entries, marks, serial, dirty, dirties, log, log_present, logged, revive
):
    """Mark entries dirty, and log those not yet logged since the last savepoint.

    With `revive`, entries that are not present become present. Returns the new numbers of dirty and of
    logged entries, and how many became present.
    """
    revived = 0
    stamp = np.int32(serial) * STAMP
    for i in range(len(entries)):
        entry = np.uint64(entries[i])
        mark = marks[entry]
        if mark < stamp:
            log[logged] = entry
            log_present[logged] = mark & PRESENT
            logged += 1
        elif mark & DIRTY and (mark & PRESENT or not revive):
            continue
        if not mark & DIRTY:
            dirty[dirties] = entry
            dirties += 1
        present = mark & PRESENT
        if revive and not present:
            present = PRESENT
            revived += 1
        marks[entry] = stamp | DIRTY | present | (mark & (NEW | LOGGED))
    return dirties, logged, revived


@njit(cache=True, nogil=True)
def clear_present(entries, marks):  # type: ignore[no-untyped-def]
    """Mark entries as not present, and return how many were present."""
    gone = 0
    for i in range(len(entries)):
        mark = marks[entries[i]]
        gone += mark & PRESENT
        marks[entries[i]] = mark & ~PRESENT
    return gone


@njit(cache=True, nogil=True)
def clear_dirty(entries, marks):  # type: ignore[no-untyped-def]
    for i in range(len(entries)):
        marks[entries[i]] &= ~(DIRTY | NEW)


@njit(cache=True, nogil=True)
def take_over(  # type: ignore[no-untyped-def]
    dirty, log, log_present, marks, entries, present, size, rows
):
    """End a round: clear the marks of dirty entries, and add those that are not logged yet to the epoch's
    log.

    `rows` receives the first row of each added entry in the round's log, -1 for new entries. Returns the
    new size, and whether any entry was new. An entry that is not new is logged when it becomes dirty, so
    first rows are in the order of `dirty`.
    """
    added, at, any_new = 0, 0, False
    for i in range(len(dirty)):
        entry = dirty[i]
        mark = marks[entry]
        row = -1
        if not mark & NEW:
            while log[at] != entry:
                at += 1
            row = at
        marks[entry] = mark & ~(DIRTY | NEW) | LOGGED
        if mark & LOGGED:
            continue
        entries[size] = entry
        present[size] = log_present[row] if row >= 0 else 0
        rows[added] = row
        any_new |= row < 0
        added += 1
        size += 1
    return size, any_new


@njit(cache=True, nogil=True)
def clear_logged(entries, marks):  # type: ignore[no-untyped-def]
    for i in range(len(entries)):
        marks[entries[i]] &= ~LOGGED


@njit(cache=True, nogil=True)
def logged_rows(entries, marks, log, place):  # type: ignore[no-untyped-def]
    """Row of each entry in the log of the current epoch; -1 if it is not logged.

    `place` is a scratch array with room for one number per entry.
    """
    for i in range(len(log)):
        place[log[i]] = i
    out = np.empty(len(entries), np.int64)
    for i in range(len(entries)):
        out[i] = place[entries[i]] if marks[entries[i]] & LOGGED else -1
    return out


@njit(cache=True, nogil=True)
def least_above(values, bound):  # type: ignore[no-untyped-def]
    """The lowest value above a bound; the bound itself if there is none."""
    least = bound
    for i in range(len(values)):
        value = values[i]
        if value > bound and (value < least or least == bound):
            least = value
    return least


@njit(cache=True, nogil=True)
def first_rows(entries, marks, log, place):  # type: ignore[no-untyped-def]
    """Row of the log with each entry as of the last step; UNCHANGED or WAS_NOT for others.

    `place` is a scratch array with room for one number per entry.
    """
    for i in range(len(log) - 1, -1, -1):
        place[log[i]] = i
    out = np.empty(len(entries), np.int64)
    for i in range(len(entries)):
        mark = marks[entries[i]]
        if mark & NEW:
            out[i] = WAS_NOT
        elif mark & DIRTY:
            out[i] = place[entries[i]]
        else:
            out[i] = UNCHANGED
    return out


@njit(cache=True, nogil=True)
def restore_present(log, log_present, marks):  # type: ignore[no-untyped-def]
    """Restore which entries were present, from the log, the last entry first."""
    for i in range(len(log) - 1, -1, -1):
        marks[log[i]] = (marks[log[i]] & ~PRESENT) | np.int32(log_present[i])

"""Compiled loops of the key index: linear probing over dense keys.

`index` contains entry numbers, or -1 in an empty cell. Its length is a power of two. Probing starts at the
low bits of a hash, since the high bits determine the slot and a host has only some slots.
Indices are unsigned where it matters: a signed one costs a check for negative numbers.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from penstock.state.keys.kernels import copy_bytes, load1, load8

_ONE = np.uint64(1)


@njit(cache=True, nogil=True)
def find_ints(ints, hashes, index, keys):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(index) - 1)
    out = np.empty(len(ints), np.int64)
    for i in range(len(ints)):
        at = hashes[i] & mask
        entry = index[at]
        while entry >= 0 and keys[entry] != ints[i]:
            at = (at + _ONE) & mask
            entry = index[at]
        out[i] = entry
    return out


@njit(cache=True, nogil=True)
def upsert_ints(ints, hashes, start, index, keys, size, limit, out):  # type: ignore[no-untyped-def]
    """Find or append keys from row `start` on, until there are `limit` entries.

    Returns the number of entries and the first row that was not processed.
    """
    mask = np.uint64(len(index) - 1)
    for i in range(start, len(ints)):
        key = ints[i]
        at = hashes[i] & mask
        entry = index[at]
        while entry >= 0 and keys[np.uint64(entry)] != key:
            at = (at + _ONE) & mask
            entry = index[at]
        if entry < 0:
            if size >= limit:
                return size, i
            entry = np.int32(size)
            index[at] = entry
            keys[entry] = key
            size += 1
        out[i] = entry
    return size, len(ints)


@njit(cache=True, nogil=True, inline="always")
def same_bytes(one, other, size):  # type: ignore[no-untyped-def]
    """Whether `size` bytes at two addresses are equal."""
    end = one + size
    shift = other - one
    while one + 8 <= end:
        if load8(one) != load8(one + shift):
            return False
        one += 8
    while one < end:
        if load1(one) != load1(one + shift):
            return False
        one += 1
    return True


@njit(cache=True, nogil=True)
def find_bytes(offsets, data, hashes, index, known, ends, heap):  # type: ignore[no-untyped-def]
    """Find keys. `known` are the hashes of the entries; entry e is heap[ends[e]:ends[e + 1]]."""
    mask = np.uint64(len(index) - 1)
    base, there = np.int64(data.ctypes.data), np.int64(heap.ctypes.data)
    out = np.empty(len(hashes), np.int64)
    for i in range(len(hashes)):
        at = hashes[i] & mask
        size = offsets[i + 1] - offsets[i]
        found = np.int64(-1)
        while index[at] >= 0:
            entry = np.uint64(index[at])
            alike = known[entry] == hashes[i] and ends[entry + _ONE] - ends[entry] == size
            if alike and same_bytes(base + offsets[i], there + ends[entry], size):
                found = np.int64(entry)
                break
            at = (at + _ONE) & mask
        out[i] = found
    return out


@njit(cache=True, nogil=True)
def upsert_bytes(  # type: ignore[no-untyped-def]
    offsets, data, hashes, start, index, known, ends, heap, size, limit, out
):
    """Find or append keys as `upsert_ints` does. Also stops when the heap has no room for a key."""
    mask = np.uint64(len(index) - 1)
    base, there = np.int64(data.ctypes.data), np.int64(heap.ctypes.data)
    for i in range(start, len(hashes)):
        at = hashes[i] & mask
        length = offsets[i + 1] - offsets[i]
        found = np.int64(-1)
        while index[at] >= 0:
            entry = np.uint64(index[at])
            alike = known[entry] == hashes[i] and ends[entry + _ONE] - ends[entry] == length
            if alike and same_bytes(base + offsets[i], there + ends[entry], length):
                found = np.int64(entry)
                break
            at = (at + _ONE) & mask
        if found < 0:
            end = ends[size]
            if size >= limit or end + length > len(heap):
                return size, i
            copy_bytes(there + end, base + offsets[i], length)
            ends[size + 1] = end + length
            known[size] = hashes[i]
            index[at] = size
            found = size
            size += 1
        out[i] = found
    return size, len(hashes)


@njit(cache=True, nogil=True)
def fill(index, hashes):  # type: ignore[no-untyped-def]
    """Fill an empty index with entries of these hashes, in this order, which `unwind` relies on."""
    mask = np.uint64(len(index) - 1)
    for entry in range(len(hashes)):
        at = hashes[entry] & mask
        while index[at] >= 0:
            at = (at + _ONE) & mask
        index[at] = entry


@njit(cache=True, nogil=True)
def unwind(index, hashes, first):  # type: ignore[no-untyped-def]
    """Remove the newest entries, which start at `first` and have these hashes.

    The last one is removed first, so that no probe chain breaks.
    """
    mask = np.uint64(len(index) - 1)
    for i in range(len(hashes) - 1, -1, -1):
        at = hashes[i] & mask
        while index[at] != first + i:
            at = (at + _ONE) & mask
        index[at] = -1

"""Compiled loops over keys: hashes, slots, and the bytes of keys that are not a single integer.

The hash of a key determines its slot, and checkpoints are organized by slot. So these functions must
never return other hashes than today.

numba caches compiled kernels beside their module. It recompiles when that file changes, but not when a
helper in another file does: after editing `mix` or `copy_bytes`, delete the .nbi and .nbc files.

Bytes are read and written as words of 1, 4 and 8 bytes at a memory address. A helper with an array as
argument counts a reference at each call; one with an address does not. Byte by byte, a word would take
eight loads and eight stores, which the compiler cannot merge if two arrays might overlap. Words are
little-endian, as are the machines that Spark and Arrow run on. In a kernel, `data.ctypes.data` is the
address of an array. The kernel must keep a reference to the array; accesses are not bounds-checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIVE, _ADD = np.uint64(5), np.uint64(0x52DCE729)
_S27, _S30, _S31, _S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
_S33, _S37 = np.uint64(33), np.uint64(37)


_BYTES = {1: ir.IntType(8), 4: ir.IntType(32), 8: ir.IntType(64)}


def _loader(size: int) -> Any:
    def load(typing_context, address):  # type: ignore[no-untyped-def]
        def generate(context, builder, sig, args):  # type: ignore[no-untyped-def]
            place = builder.inttoptr(args[0], _BYTES[size].as_pointer())
            word = builder.load(place, typ=_BYTES[size], align=1)
            return word if size == 8 else builder.zext(word, _BYTES[8])

        return types.uint64(types.int64), generate

    return intrinsic(load)


def _storer(size: int) -> Any:
    def store(typing_context, address, word):  # type: ignore[no-untyped-def]
        def generate(context, builder, sig, args):  # type: ignore[no-untyped-def]
            place = builder.inttoptr(args[0], _BYTES[size].as_pointer())
            value = args[1] if size == 8 else builder.trunc(args[1], _BYTES[size])
            builder.store(value, place, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.uint64), generate

    return intrinsic(store)


load8, load4, load1 = _loader(8), _loader(4), _loader(1)
"""load8(address) reads a word at the address, as uint64."""
store8, store4, store1 = _storer(8), _storer(4), _storer(1)
"""store8(address, word) writes the low bytes of a uint64 to the address."""


@njit(cache=True, nogil=True, inline="always")
def mix(x):  # type: ignore[no-untyped-def]
    """Apply the finalizer of splitmix64 to one uint64."""
    x = x + _GAMMA
    x = (x ^ (x >> _S30)) * _M1
    x = (x ^ (x >> _S27)) * _M2
    return x ^ (x >> _S31)


@njit(cache=True, nogil=True)
def hash_ints(ints):  # type: ignore[no-untyped-def]
    out = np.empty(len(ints), np.uint64)
    for i in range(len(ints)):
        out[i] = mix(np.uint64(ints[i]))
    return out


@njit(cache=True, nogil=True, inline="always")
def stir(h, word):  # type: ignore[no-untyped-def]
    """Mix one word into hash `h`, as one round of Murmur3."""
    word *= _C1
    word = (word << _S31) | (word >> _S33)
    h ^= word * _C2
    return ((h << _S27) | (h >> _S37)) * _FIVE + _ADD


@njit(cache=True, nogil=True)
def hash_bytes(offsets, data):  # type: ignore[no-untyped-def]
    """Hash each row of bytes: one round per word of 8 bytes, the last one overlapping. The length is the
    seed."""
    n = len(offsets) - 1
    out = np.empty(n, np.uint64)
    base = np.int64(data.ctypes.data)
    for i in range(n):
        at, end = base + offsets[i], base + offsets[i + 1]
        size = end - at
        h = np.uint64(size) * _GAMMA
        if size >= 8:
            while at + 8 < end:
                h = stir(h, load8(at))
                at += 8
            h = stir(h, load8(end - 8))
        elif size >= 4:
            h = stir(h, load4(at) | (load4(end - 4) << _S32))
        elif size > 0:
            word = load1(at) | (load1(at + size // 2) << np.uint64(8))
            h = stir(h, word | (load1(end - 1) << np.uint64(16)))
        out[i] = mix(h)
    return out


@njit(cache=True, nogil=True)
def slots_of_hashes(hashes, slots):  # type: ignore[no-untyped-def]
    out = np.empty(len(hashes), np.int32)
    many = np.uint64(slots)
    for i in range(len(hashes)):
        out[i] = np.int32(((hashes[i] >> _S32) * many) >> _S32)
    return out


@njit(cache=True, nogil=True, inline="always")
def copy_bytes(to, at, size):  # type: ignore[no-untyped-def]
    """Copy bytes between two addresses word by word, the last one overlapping. Fast for short keys."""
    if size >= 8:
        end, far = at + size - 8, to + size - 8
        while at < end:
            store8(to, load8(at))
            at += 8
            to += 8
        store8(far, load8(end))
    elif size >= 4:
        tail = load4(at + size - 4)
        store4(to, load4(at))
        store4(to + size - 4, tail)
    else:
        for j in range(size):
            store1(to + j, load1(at + j))


@njit(cache=True, nogil=True)
def gather_offsets(offsets, rows):  # type: ignore[no-untyped-def]
    out = np.empty(len(rows) + 1, np.int64)
    end = np.int64(0)
    out[0] = end
    for i in range(len(rows)):
        row = rows[i]
        end += offsets[row + 1] - offsets[row]
        out[i + 1] = end
    return out


@njit(cache=True, nogil=True)
def gather_bytes(offsets, data, rows, new_offsets):  # type: ignore[no-untyped-def]
    out = np.empty(new_offsets[len(rows)], np.uint8)
    base, to = np.int64(data.ctypes.data), np.int64(out.ctypes.data)
    for i in range(len(rows)):
        size = new_offsets[i + 1] - new_offsets[i]
        copy_bytes(to + new_offsets[i], base + offsets[rows[i]], size)
    return out


@njit(cache=True, nogil=True)
def put_sized(out, cursor, offsets, data):  # type: ignore[no-untyped-def]
    """Write the bytes of row i at cursor[i] and move the cursor behind them."""
    base, to = np.int64(data.ctypes.data), np.int64(out.ctypes.data)
    for i in range(len(cursor)):
        size = offsets[i + 1] - offsets[i]
        copy_bytes(to + cursor[i], base + offsets[i], size)
        cursor[i] += size


@njit(cache=True, nogil=True)
def put_counted(out, cursor, counts, offsets, data):  # type: ignore[no-untyped-def]
    """Write a count (4 bytes) and the bytes of row i at cursor[i], and move behind them."""
    base, to = np.int64(data.ctypes.data), np.int64(out.ctypes.data)
    for i in range(len(cursor)):
        store4(to + cursor[i], np.uint64(counts[i]))
        size = offsets[i + 1] - offsets[i]
        copy_bytes(to + cursor[i] + 4, base + offsets[i], size)
        cursor[i] += 4 + size


@njit(cache=True, nogil=True)
def marked_offsets(valid, offsets):  # type: ignore[no-untyped-def]
    """Offsets of rows that consist of a mark and, if valid, the next of the given rows."""
    out = np.empty(len(valid) + 1, np.int64)
    end, row = np.int64(0), 0
    out[0] = end
    for i in range(len(valid)):
        end += 1
        if valid[i]:
            end += offsets[row + 1] - offsets[row]
            row += 1
        out[i + 1] = end
    return out


@njit(cache=True, nogil=True)
def put_marked(new_offsets, valid, offsets, data):  # type: ignore[no-untyped-def]
    """The bytes of rows with `marked_offsets`. The mark is 1 if valid, else 0."""
    out = np.empty(new_offsets[len(valid)], np.uint8)
    base, to = np.int64(data.ctypes.data), np.int64(out.ctypes.data)
    row = 0
    for i in range(len(valid)):
        at = new_offsets[i]
        if valid[i]:
            out[at] = 1
            size = offsets[row + 1] - offsets[row]
            copy_bytes(to + at + 1, base + offsets[row], size)
            row += 1
        else:
            out[at] = 0
    return out


@njit(cache=True, nogil=True)
def take_counts(data, cursor):  # type: ignore[no-untyped-def]
    """Read the counts at the cursors and move behind them."""
    out = np.empty(len(cursor), np.int64)
    base = np.int64(data.ctypes.data)
    for i in range(len(cursor)):
        out[i] = np.int64(load4(base + cursor[i]))
        cursor[i] += 4
    return out


@njit(cache=True, nogil=True)
def take_fixed(data, cursor, width):  # type: ignore[no-untyped-def]
    """Read `width` bytes at each cursor and move behind them."""
    out = np.empty(len(cursor) * width, np.uint8)
    base, to = np.int64(data.ctypes.data), np.int64(out.ctypes.data)
    for i in range(len(cursor)):
        copy_bytes(to + i * width, base + cursor[i], width)
        cursor[i] += width
    return out


@njit(cache=True, nogil=True)
def take_sized(data, cursor, offsets):  # type: ignore[no-untyped-def]
    """Read offsets[i + 1] - offsets[i] bytes at each cursor and move behind them."""
    out = np.empty(offsets[len(cursor)], np.uint8)
    base, to = np.int64(data.ctypes.data), np.int64(out.ctypes.data)
    for i in range(len(cursor)):
        size = offsets[i + 1] - offsets[i]
        copy_bytes(to + offsets[i], base + cursor[i], size)
        cursor[i] += size
    return out

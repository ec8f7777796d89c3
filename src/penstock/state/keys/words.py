"""Words of 1, 4 and 8 bytes at a memory address, for compiled loops over the bytes of keys.

A helper that is given an array counts a reference to it, at each call; one that is given an address
does not. Spelled out byte by byte, a word would be eight loads and eight stores, which the compiler
cannot join where two arrays might overlap. Here each is one instruction. Words are little-endian,
as the machines are that Spark and Arrow run on. In a kernel, `data.ctypes.data` is the address of
an array; the kernel must hold on to the array, and nothing is checked.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

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
"""load8(address) -> uint64."""
store8, store4, store1 = _storer(8), _storer(4), _storer(1)
"""store8(address, word): the low bytes of the word go to the address."""

"""Random texts, vectorised: they are cut out of one long random text, as in the canonical generator."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock_bench.workloads.draws import Draws, Numbers, mixed

_POOL = 1 << 20


@lru_cache(maxsize=8)
def _pool(seed: int, gaps: str) -> npt.NDArray[np.uint8]:
    """Random letters, about every thirteenth replaced by the character `gaps`, if it is not empty."""
    words = Draws(seed, np.arange(_POOL)).words("pool")
    letters = (np.uint64(ord("a")) + words % np.uint64(26)).astype(np.uint8)
    if gaps:
        letters[mixed(words) % np.uint64(13) == 0] = ord(gaps)
    return letters


def cut(seed: int, draws: Draws, lengths: Numbers, what: str, gaps: str = "") -> pa.Array:
    """Random texts of these lengths."""
    starts = draws.below(_POOL, what)
    ends = np.cumsum(lengths)
    before = ends - lengths
    places = np.repeat(starts - before, lengths) + np.arange(ends[-1] if len(ends) else 0)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    data = _pool(seed, gaps)[places & (_POOL - 1)]  # The pool wraps around.
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(data))


def words(seed: int, draws: Draws, longest: int, what: str, gaps: str = " ") -> pa.Array:
    """Random texts of three to `longest` - 1 letters and spaces, without spaces at the ends."""
    lengths = 3 + draws.below(longest - 3, what + "#")
    text = cut(seed, draws, lengths, what, gaps)
    return pc.ascii_trim(text, " ") if gaps == " " else text


def filler(seed: int, draws: Draws, used: Numbers | int, average: int) -> pa.Array:
    """Texts that fill events of `used` bytes up to `average` bytes, give or take a fifth of the text."""
    room = np.maximum(average - used, 0)
    spread = (room * 2 + 5) // 10
    lengths = room - spread + draws.below(np.maximum(2 * spread, 1), "extra#")
    return cut(seed, draws, lengths, "extra")


def lengths(text: pa.Array) -> Numbers:
    """Number of bytes of each text."""
    sizes: Numbers = pc.binary_length(text).to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes

"""Random text, vectorised: cut out of one long random text, as the canonical generator does."""

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
    """Letters; where `gaps` is a character, every thirteenth of them or so is that instead."""
    words = Draws(seed, np.arange(_POOL)).words("pool")
    letters = (np.uint64(ord("a")) + words % np.uint64(26)).astype(np.uint8)
    if gaps:
        letters[mixed(words) % np.uint64(13) == 0] = ord(gaps)
    return letters


def cut(seed: int, draws: Draws, lengths: Numbers, what: str, gaps: str = "") -> pa.Array:
    """Texts of these lengths."""
    starts = draws.below(_POOL, what)
    ends = np.cumsum(lengths)
    before = ends - lengths
    places = np.repeat(starts - before, lengths) + np.arange(ends[-1] if len(ends) else 0)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    data = _pool(seed, gaps)[places & (_POOL - 1)]  # the end goes on with the beginning
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(data))


def words(seed: int, draws: Draws, longest: int, what: str, gaps: str = " ") -> pa.Array:
    """Texts of three to `longest` - 1 letters and blanks, without blanks around them."""
    lengths = 3 + draws.below(longest - 3, what + "#")
    found = cut(seed, draws, lengths, what, gaps)
    return pc.ascii_trim(found, " ") if gaps == " " else found


def filler(seed: int, draws: Draws, used: Numbers | int, average: int) -> pa.Array:
    """Texts that fill events of `used` bytes up to `average`, a fifth of it more or less."""
    room = np.maximum(average - used, 0)
    spread = (room * 2 + 5) // 10
    lengths = room - spread + draws.below(np.maximum(2 * spread, 1), "extra#")
    return cut(seed, draws, lengths, "extra")


def lengths(text: pa.Array) -> Numbers:
    """How many bytes each text has."""
    found: Numbers = pc.binary_length(text).to_numpy(zero_copy_only=False).astype(np.int64)
    return found

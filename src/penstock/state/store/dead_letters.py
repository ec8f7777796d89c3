"""Dead letters: rows that were set aside, in files of one epoch or, later, of many.

    dead_letters/<epoch>.jsonl           written before the epoch is durable; replaced if it is run again
    dead_letters/<first>-<last>.jsonl    a batch: all letters of these epochs, put together in the background

A file whose epochs lie within those of another does not count: the other was made of it, and it is about
to go. So a crash at any point leaves each letter once for those who read by `letters`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from penstock.state.store.files import Found
from penstock.state.store.store import Store

_MANY = 32
"""Files of one epoch that are put together at a time."""
_BATCH_BYTES = 8 << 20
"""A batch of this size is left as it is, and the next one begun."""

_log = logging.getLogger("penstock.store")


def letters(store: Store) -> Iterator[bytes]:
    """All dead letters as lines of JSON, by epoch."""
    for found in counting(store.files.below("dead_letters")):
        yield from (store.files.read(found.name) or b"").splitlines()


def counting(files: Iterable[Found]) -> list[Found]:
    """The files that count, by epoch.

    >>> names = ["3.jsonl", "0-2.jsonl", "1.jsonl", "0-1.jsonl", "3.jsonl.7-1.tmp"]
    >>> [found.name for found in counting(Found(name, 0) for name in names)]
    ['0-2.jsonl', '3.jsonl']
    """
    whole = [found for found in files if found.name.endswith(".jsonl")]
    last, kept = -1, []
    for found in sorted(whole, key=lambda found: (_epochs(found)[0], -_epochs(found)[1])):
        if _epochs(found)[1] > last:
            last = _epochs(found)[1]
            kept.append(found)
    return kept


def tidy(store: Store, newest: int, most_bytes: int) -> None:
    """Put letters of single epochs together, and remove the oldest files beyond so many bytes.

    `newest` is an epoch that is durable. It may be run again, so its letters are not touched.
    """
    found = store.files.below("dead_letters")
    final = [file for file in counting(found) if _epochs(file)[1] < newest]
    single = [file for file in final if _epochs(file)[0] == _epochs(file)[1]]
    if len(single) >= _MANY:
        first = final.index(single[0])
        if first and final[first - 1].size < _BATCH_BYTES:
            first -= 1
        name = _name(_epochs(final[first])[0], _epochs(final[-1])[1])
        data = b"".join(store.files.read(file.name) or b"" for file in final[first:])
        store.files.write(name, data)
        final[first:] = [Found(name, len(data))]
    left = sum(file.size for file in final)
    gone = {file.name for file in found if _epochs(file)[1] < newest} - {f.name for f in final}
    for file in final:
        if left <= most_bytes:
            break
        left -= file.size
        gone.add(file.name)
        _log.warning(
            "dead letters of epochs %d to %d are removed: there are more than "
            "Settings.dead_letters_mb",
            *_epochs(file),
        )
    for name in sorted(gone):
        store.files.remove(name)


def _epochs(found: Found) -> tuple[int, int]:
    """The first and last epoch of a file."""
    first, _, last = found.name.rsplit("/", 1)[-1].split(".")[0].partition("-")
    return int(first), int(last or first)


def _name(first: int, last: int) -> str:
    return f"dead_letters/{first:012d}-{last:012d}.jsonl"

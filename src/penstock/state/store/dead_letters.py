"""Dead letters: rows that were set aside, in files of one epoch or, later, of many.

    dead_letters/<epoch>.jsonl           written before the epoch is durable; replaced if it is run again
    dead_letters/<first>-<last>.jsonl    a batch: all letters of these epochs, merged in the background

A file whose epochs are within those of another file is ignored: it was merged into the other file and
will be removed. So `letters` returns each letter once, even after a crash at any point.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from penstock.state.store.files import StoredFile
from penstock.state.store.store import Store

_MANY = 32
"""Number of single-epoch files from which they are merged."""
_BATCH_BYTES = 8 << 20
"""Size in bytes from which a batch is left as it is, and a new one is started."""

_log = logging.getLogger("penstock.store")


def letters(store: Store) -> Iterator[bytes]:
    """All dead letters as lines of JSON, by epoch."""
    for file in counting(store.files.below("dead_letters")):
        yield from (store.files.read(file.name) or b"").splitlines()


def counting(files: Iterable[StoredFile]) -> list[StoredFile]:
    """The files that count, by epoch: neither temporary ones nor those merged into others.

    >>> names = ["3.jsonl", "0-2.jsonl", "1.jsonl", "0-1.jsonl", "3.jsonl.7-1.tmp"]
    >>> [file.name for file in counting(StoredFile(name, 0) for name in names)]
    ['0-2.jsonl', '3.jsonl']
    """
    whole = [file for file in files if file.name.endswith(".jsonl")]
    last, kept = -1, []
    for file in sorted(whole, key=lambda file: (_epochs(file)[0], -_epochs(file)[1])):
        if _epochs(file)[1] > last:
            last = _epochs(file)[1]
            kept.append(file)
    return kept


def tidy(store: Store, newest: int, most_bytes: int) -> None:
    """Merge letters of single epochs into batches, and remove the oldest files beyond `most_bytes` bytes.

    `newest` is the newest durable epoch. It may be run again, so its letters are not touched.
    """
    files = store.files.below("dead_letters")
    final = [file for file in counting(files) if _epochs(file)[1] < newest]
    single = [file for file in final if _epochs(file)[0] == _epochs(file)[1]]
    if len(single) >= _MANY:
        first = final.index(single[0])
        if first and final[first - 1].size < _BATCH_BYTES:
            first -= 1
        name = _name(_epochs(final[first])[0], _epochs(final[-1])[1])
        data = b"".join(store.files.read(file.name) or b"" for file in final[first:])
        store.files.write(name, data)
        final[first:] = [StoredFile(name, len(data))]
    left = sum(file.size for file in final)
    gone = {file.name for file in files if _epochs(file)[1] < newest} - {f.name for f in final}
    for file in final:
        if left <= most_bytes:
            break
        left -= file.size
        gone.add(file.name)
        _log.warning(
            "removing dead letters of epochs %d to %d: their total size is above "
            "Settings.dead_letters_mb",
            *_epochs(file),
        )
    for name in sorted(gone):
        store.files.remove(name)


def _epochs(file: StoredFile) -> tuple[int, int]:
    """The first and last epoch of a file."""
    first, _, last = file.name.rsplit("/", 1)[-1].split(".")[0].partition("-")
    return int(first), int(last or first)


def _name(first: int, last: int) -> str:
    return f"dead_letters/{first:012d}-{last:012d}.jsonl"

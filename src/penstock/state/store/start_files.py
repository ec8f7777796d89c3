"""Packed lines that one start of a flow writes to files of its own: `<kind>/<start>/<number>.jsonl-gz`."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator

from penstock.state.store.store import Store


def start_folder(kind: str, started_ms: float) -> str:
    """Folder of a start's files. Folders sort by the time of the start."""
    return f"{kind}/{started_ms:016.0f}"


def files_by_start(store: Store, kind: str) -> dict[str, list[str]]:
    """Start -> names of its files, oldest first, as `StartWriter` wrote them."""
    starts = dict[str, list[str]]()
    for name in sorted(file.name for file in store.files.below(kind)):
        starts.setdefault(name.split("/")[1], []).append(name)
    return starts


def start_lines(store: Store, files: Iterable[str]) -> Iterator[bytes]:
    """The lines in files of a start, in order."""
    for name in files:
        yield from gzip.decompress(store.files.read(name) or b"").splitlines()

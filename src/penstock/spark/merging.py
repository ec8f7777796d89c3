"""Few folders instead of one for each epoch: the files of many epochs of a file sink are merged.

    <path>/epoch=<n>               the output of epoch n, or of all epochs since the merged ones before it
    <path>/_merging/new-<n>        what epochs were merged into, not yet in its place
    <path>/_merging/<n>.json       a mark: all of new-<n> is written, and takes the place of these epochs
    <path>/_merging/old-<n>        what it took the place of, about to be removed

Before the mark is written a merge leaves nothing but files that nobody looks at; from then on it is
finished, by whoever comes next. The newest mark stays: it tells up to where epochs are merged. Only epochs
are merged that cannot be run again. This file decides and keeps the order; the files are behind `SinkFolder`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock import codec
from penstock.errors import CheckpointError

_OWN = "_merging"
_EPOCH = "epoch="


class SinkFolder(Protocol):
    """A file sink's folder. Names are relative to it; a name that is not there is no error."""

    uri: str

    def names(self, folder: str) -> list[str]:
        """What is in a folder."""
        ...

    def files(self, folder: str) -> list[str]:
        """All files in a folder and in the folders in it, relative to it."""
        ...

    def read(self, name: str) -> bytes | None: ...

    def write(self, name: str, data: bytes) -> None:
        """Write a file, whole or not at all."""
        ...

    def settle(self, folder: str) -> None:
        """Have a folder's files on the disk, not only in its cache."""
        ...

    def rename(self, name: str, to: str) -> None:
        """Give a folder another name. It is not required that this happens at once or not at all, but
        nothing of the old one goes before the new one is complete."""
        ...

    def put_away(self, name: str, to: str) -> None:
        """Let a folder vanish as quickly as can be, here or below another one that nobody looks at."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it."""
        ...


Rewrite = Callable[[Sequence[str], str], None]
"""Writes all rows of some folders into another one, as few files."""


@dataclass(frozen=True)
class MergeMark:
    """A merge that is to be finished, or is."""

    epochs: tuple[int, ...]
    files: tuple[str, ...]
    """Of the new folder: where all of them are, it is complete."""

    @property
    def last(self) -> int:
        return self.epochs[-1]


class EpochFolders:
    """The epochs' folders of one file sink. One process at a time merges them."""

    def __init__(self, folder: SinkFolder, rewrite: Rewrite) -> None:
        self._folder, self._rewrite = folder, rewrite
        self._merged = -1

    def begin(self, epoch: int) -> None:
        """`epoch` is the first that will be written from now on."""
        self._finish()
        if epoch <= self._merged:
            raise CheckpointError(
                f"{self._folder.uri} holds epoch {self._merged} merged with those before it, but the "
                f"checkpoint goes on with epoch {epoch}",
                hint="they are not of the same run: write to another folder, or remove this one's files",
            )

    def final(self, newest: int) -> list[int]:
        """The epochs that are not merged yet and cannot be run again, since `newest` has come.

        If a merge broke off, that is finished or undone first.
        """
        self._finish()
        names = [name.removeprefix(_EPOCH) for name in self._folder.names("")]
        return sorted(int(n) for n in names if n.isdigit() and self._merged < int(n) < newest)

    def merge(self, epochs: Sequence[int]) -> None:
        """Put one folder in the place of those of some epochs, which `final` gave."""
        folder, last = self._folder, epochs[-1]
        new = f"{_OWN}/new-{last}"
        self._rewrite([f"{_EPOCH}{epoch}" for epoch in epochs], new)
        folder.settle(new)
        mark = MergeMark(tuple(epochs), tuple(sorted(folder.files(new))))
        before = self._marks()
        folder.write(f"{_OWN}/{last:012d}.json", codec.encode(mark))
        self._replace(mark)
        self._merged = last
        for name in before:
            folder.remove(f"{_OWN}/{name}")

    def _finish(self) -> None:
        """Finish the newest merge if it has its mark, and clear away what is left of others."""
        marks = self._marks()
        if marks:
            mark = codec.decode(self._folder.read(f"{_OWN}/{marks[-1]}") or b"", MergeMark)
            self._replace(mark)
            self._merged = mark.last
        for name in self._folder.names(_OWN):
            if name not in marks[-1:]:
                self._folder.remove(f"{_OWN}/{name}")

    def _replace(self, mark: MergeMark) -> None:
        """First the old folders go, then the new one comes: no row is ever there twice."""
        folder, place = self._folder, f"{_EPOCH}{mark.last}"
        new, old = f"{_OWN}/new-{mark.last}", f"{_OWN}/old-{mark.last}"
        written = set(folder.files(new))
        if written and not set(mark.files) <= set(folder.files(place)):
            if not set(mark.files) <= written:
                raise CheckpointError(
                    f"{new} of {folder.uri} lacks files that were written",
                    hint="restore the folder, or write to another one",
                )
            there = set(folder.names(""))
            for name in (f"{_EPOCH}{epoch}" for epoch in mark.epochs):
                # Looked at once more: a driver that takes over finishes what this one has begun.
                merged = name == place and set(mark.files) <= set(folder.files(place))
                if name in there and not merged:
                    folder.put_away(name, old)
            folder.rename(new, place)
        folder.remove(new)
        folder.remove(old)

    def _marks(self) -> list[str]:
        return sorted(name for name in self._folder.names(_OWN) if name.endswith(".json"))

"""Merging of a file sink's epochs: one folder for many epochs, instead of one for each.

    <path>/epoch=<n>               the output of epoch n, or of all epochs since the merged ones before it
    <path>/_merging/new-<n>        merged files that are not in place yet
    <path>/_merging/<n>.json       a mark: new-<n> is complete, and replaces these epochs
    <path>/_merging/old-<n>        the folders that it replaced, to be removed

Until the mark is written, a merge only leaves files that no one reads. After that, it is always completed, by
the next driver if necessary. The newest mark is kept, since it says which epochs are merged. Only epochs that
cannot be run again are merged. This module defines the order of steps; `SinkFolder` does the file operations.
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
    """The folder of a file sink. Names are relative to it. A name that does not exist is no error."""

    uri: str

    def names(self, folder: str) -> list[str]:
        """Names of the files and folders in a folder."""
        ...

    def files(self, folder: str) -> list[str]:
        """All files below a folder, relative to it."""
        ...

    def read(self, name: str) -> bytes | None: ...

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically."""
        ...

    def settle(self, folder: str) -> None:
        """Flush a folder's files to disk."""
        ...

    def rename(self, name: str, to: str) -> None:
        """Rename a folder. This need not be atomic, but no file of the old folder may be removed before the
        new one is complete."""
        ...

    def put_away(self, name: str, to: str) -> None:
        """Remove a folder from view as quickly as possible: delete it, or move it below `to`."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its contents."""
        ...


Rewrite = Callable[[Sequence[str], str], None]
"""Writes all rows of some folders to another one, in few files."""


@dataclass(frozen=True)
class MergeMark:
    """The mark of a merge whose files are all written."""

    epochs: tuple[int, ...]
    """Epochs that it merges."""
    files: tuple[str, ...]
    """All files of the merged folder."""

    @property
    def last(self) -> int:
        return self.epochs[-1]


class EpochFolders:
    """The epoch folders of one file sink. Only one process may merge them at a time."""

    def __init__(self, folder: SinkFolder, rewrite: Rewrite) -> None:
        self._folder, self._rewrite = folder, rewrite
        self._merged = -1

    def begin(self, epoch: int) -> None:
        """Complete an interrupted merge, and check that `epoch`, which is written next, is not merged yet."""
        self._finish()
        if epoch <= self._merged:
            raise CheckpointError(
                f"{self._folder.uri} holds epoch {self._merged} merged with those before it, but the "
                f"checkpoint goes on with epoch {epoch}",
                hint="the folder belongs to another run: write to another one, or remove its files",
            )

    def final(self, newest: int) -> list[int]:
        """Epochs before `newest` that are not merged yet.

        An interrupted merge is completed or undone first.
        """
        self._finish()
        names = [name.removeprefix(_EPOCH) for name in self._folder.names("")]
        return sorted(int(n) for n in names if n.isdigit() and self._merged < int(n) < newest)

    def merge(self, epochs: Sequence[int]) -> None:
        """Merge the folders of some epochs, which `final` has returned, into one."""
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
        """Complete the newest merge if it has a mark, and remove the files of others."""
        marks = self._marks()
        if marks:
            mark = codec.decode(self._folder.read(f"{_OWN}/{marks[-1]}") or b"", MergeMark)
            self._replace(mark)
            self._merged = mark.last
        for name in self._folder.names(_OWN):
            if name not in marks[-1:]:
                self._folder.remove(f"{_OWN}/{name}")

    def _replace(self, mark: MergeMark) -> None:
        """Remove the old folders first and then add the new one, so that no row ever appears twice."""
        folder, place = self._folder, f"{_EPOCH}{mark.last}"
        new, old = f"{_OWN}/new-{mark.last}", f"{_OWN}/old-{mark.last}"
        written = set(folder.files(new))
        if written and not set(mark.files) <= set(folder.files(place)):
            if not set(mark.files) <= written:
                raise CheckpointError(
                    f"files of {new} in {folder.uri} are missing",
                    hint="restore the folder, or write to another one",
                )
            there = set(folder.names(""))
            for name in (f"{_EPOCH}{epoch}" for epoch in mark.epochs):
                # Checked again, since another driver may take over and complete this merge.
                merged = name == place and set(mark.files) <= set(folder.files(place))
                if name in there and not merged:
                    folder.put_away(name, old)
            folder.rename(new, place)
        folder.remove(new)
        folder.remove(old)

    def _marks(self) -> list[str]:
        return sorted(name for name in self._folder.names(_OWN) if name.endswith(".json"))

"""The checkpoint folder, which Spark and Penstock share: where it is, and what Spark's log in it says."""

from __future__ import annotations

import json
import logging
import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from pyspark.sql import SparkSession

from penstock.errors import SettingError
from penstock.spark import private
from penstock.state.store.files import Files
from penstock.state.store.places import Place, below, local_uri
from penstock.state.store.s3 import S3_SCHEMES, s3_options
from penstock.state.store.store import Store

_log = logging.getLogger("penstock.store")


@dataclass(frozen=True)
class Folder:
    """A checkpoint folder by its two names, both absolute and with their scheme."""

    spark: str
    """For Spark's `checkpointLocation`."""
    place: Place
    """For Penstock; Penstock's own part of it is the folder `penstock` in it."""

    @property
    def store(self) -> Place:
        return Place(below(self.place.uri, "penstock"), self.place.options)


def locate(spark: SparkSession, checkpoint: str) -> Folder:
    """The folder that Spark means by a path or URI, so that Penstock means the same.

    Spark takes a path without a scheme for one of its default file system (`fs.defaultFS`), and knows
    no query: that is for Penstock alone.
    """
    has_scheme = ":" in checkpoint.split("/")[0]
    remote = has_scheme and not checkpoint.startswith("file:")
    path, mark, query = checkpoint.partition("?") if remote else (checkpoint, "", "")
    if not has_scheme:
        path = os.path.expanduser(path)
    if path.startswith("s3://") and not private.knows_scheme(spark, "s3"):
        path = f"s3a{path.removeprefix('s3')}"
    try:
        # S3 has no folder to be relative to; and a live flow needs no Spark that knows S3.
        scheme, _, rest = path.partition("://")
        authority, slash, folder = rest.partition("/")
        if scheme in S3_SCHEMES and authority:
            folder = slash + folder or "/"
        else:
            scheme, authority, folder = private.qualified(spark, path)
    except Exception as refused:
        reason = str(getattr(refused, "java_exception", refused))
        raise SettingError(
            f"Spark cannot use the checkpoint folder {checkpoint!r}: {reason}",
            hint="use a path, or a URI of a file system that this Spark has: file://, hdfs://, s3a://",
        ) from refused
    folder = posixpath.normpath(folder)
    if scheme == "file":
        return Folder(f"file://{folder}", Place(local_uri(folder)))
    name = f"{scheme}://{authority}{folder}"
    if scheme not in S3_SCHEMES:
        return Folder(name, Place(f"{scheme}://{authority}{quote(folder)}{mark}{query}"))
    options, missing = s3_options(private.s3a_settings(spark, authority))
    if missing:
        _log.warning(
            "Settings ignored for %s: %s. Penstock reads and writes it by pyarrow, which does not know them.",
            name,
            ", ".join(f"fs.s3a.{setting}" for setting in missing),
            extra={"settings": [f"fs.s3a.{setting}" for setting in missing]},
        )
    return Folder(name, Place(f"s3://{authority}{quote(folder)}{mark}{query}", options))


def version_to_resume(folder: Folder, store: Store) -> int | None:
    """The version that the next epoch of a stream builds on; None if Spark has committed none.

    If the newest version is damaged and the one before is not, Spark's commit of its epoch is taken
    back, so that Spark replays the epoch: its input is in Spark's log, and the state before it is whole.
    That needs an epoch that nothing was begun after: Spark replays one epoch only.
    """
    files = Files(folder.place)
    begun, committed = _newest(files, "offsets"), _newest(files, "commits")
    if committed is None or not (wrong := store.damage(committed)):
        return committed
    before = committed - 1
    if begun != committed or (before >= 0 and store.damage(before)):
        return committed
    _log.warning(
        "Version %d of %s is damaged (%s): going back to version %d, and running epoch %d again.",
        committed,
        store.uri,
        wrong,
        before,
        committed,
        extra={"epoch": committed, "reason": wrong},
    )
    files.remove(f"commits/.{committed}.crc")
    files.remove(f"commits/{committed}")
    return before


def _newest(files: Files, folder: str) -> int | None:
    """The newest epoch in one of the folders of Spark's log."""
    names = [found.name.rsplit("/", 1)[1] for found in files.below(folder)]
    return max((int(name) for name in names if name.isdigit()), default=None)


class OffsetLog:
    """Spark's log of how far each source was read: a file for each epoch, with a version, the epoch's
    facts, then a line for each source."""

    def __init__(self, folder: Folder) -> None:
        self._files = Files(folder.place)
        newest = _newest(self._files, "offsets")
        # Of these two Spark reads how far it has come.
        two = [] if newest is None else [n for n in (newest - 1, newest) if n >= 0]
        read = {n: self._files.read(f"offsets/{n}") for n in two}
        self._entries = {n: data.decode() for n, data in read.items() if data is not None}

    def sources(self) -> int | None:
        """How many sources the newest epoch had; None: there was none."""
        newest = self._entries.get(max(self._entries, default=-1), "").split("\n")
        return len(newest) - 2 if newest[0] == "v1" else None

    def offsets(self, epoch: int) -> list[str] | None:
        """How far each source was read with an epoch, as JSON, "-" if not at all; None: it is not known."""
        data = self._files.read(f"offsets/{epoch}")
        lines = [] if data is None else data.decode().split("\n")
        return lines[2:] if lines[:1] == ["v1"] else None

    def begin_after(self, epoch: int, offsets: Sequence[str], now_ms: int) -> None:
        """Have Spark go on after this epoch, with sources that were read so far. The commit comes last: until
        then Spark would run the epoch again."""
        facts = {"batchWatermarkMs": 0, "batchTimestampMs": now_ms, "conf": {}}
        lines = ["v1", json.dumps(facts), *offsets]
        done = ["v1", json.dumps({"nextBatchWatermarkMs": 0})]
        # Spark also looks for the offsets of the epoch before, though only a rerun of this one needs them.
        before = [] if epoch == 0 else [(f"offsets/{epoch - 1}", lines)]
        for name, text in (*before, (f"offsets/{epoch}", lines), (f"commits/{epoch}", done)):
            folder, number = name.split("/")
            self._files.remove(f"{folder}/.{number}.crc")  # Hadoop's checksum of what it was
            self._files.write(name, "\n".join(text).encode())

    def have_sources(self, count: int) -> None:
        """Have so many sources; of those that come new nothing was read. The newest epoch comes last: it
        is the one that counts, should this break off."""
        for number, text in sorted(self._entries.items()):
            if missing := count + 2 - len(text.split("\n")):
                self._files.remove(f"offsets/.{number}.crc")  # Hadoop's checksum of what it was
                self._files.write(f"offsets/{number}", (text + "\n-" * missing).encode())

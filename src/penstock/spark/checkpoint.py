"""The checkpoint folder, which Spark and Penstock share, and Spark's log in it."""

from __future__ import annotations

import json
import logging
import os
import posixpath
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from pyspark.sql import SparkSession

from penstock.driver.clock import wall_ms
from penstock.errors import SettingError
from penstock.spark import private
from penstock.state.store.files import Files
from penstock.state.store.places import Place, below, local_uri
from penstock.state.store.s3 import S3_SCHEMES, s3_options
from penstock.state.store.store import Manifest, Store

_log = logging.getLogger("penstock.store")


@dataclass(frozen=True)
class Folder:
    """The absolute URIs of a checkpoint folder, for Spark and for Penstock."""

    spark: str
    """URI for Spark's `checkpointLocation`."""
    place: Place
    """Place for Penstock, which keeps its files in a subfolder `penstock`."""

    @property
    def store(self) -> Place:
        return Place(below(self.place.uri, "penstock"), self.place.options)


def locate(spark: SparkSession, checkpoint: str) -> Folder:
    """The folder of a path or URI, as Spark understands it.

    For Spark a path without a scheme is on its default file system (`fs.defaultFS`). A query in the URI is
    only for Penstock.
    """
    has_scheme = ":" in checkpoint.split("/")[0]
    remote = has_scheme and not checkpoint.startswith("file:")
    path, mark, query = checkpoint.partition("?") if remote else (checkpoint, "", "")
    if not has_scheme:
        path = os.path.expanduser(path)
    if path.startswith("s3://") and not private.knows_scheme(spark, "s3"):
        path = f"s3a{path.removeprefix('s3')}"
    try:
        # S3 has no relative paths, and a live flow works without S3 support in Spark.
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
    """The version before the next epoch of a stream; None if Spark has committed none.

    If the newest version is damaged and the one before is sound, Spark's commit of the epoch is removed, so
    that Spark runs it again. This only works for the last epoch that was begun, since Spark repeats only
    that one.
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


def catch_up(folder: Folder, store: Store) -> None:
    """Write the manifest of the newest epoch that Spark has committed, if there is none.

    A flow without keyed state that runs as plain Spark writes no manifests. If it then runs in another way,
    it continues from this one, which builds on nothing.
    """
    committed = _newest(Files(folder.place), "commits")
    if committed is None or committed <= max(store.epochs(), default=-1):
        return
    store.write_manifest(
        Manifest(
            epoch=committed,
            run=0,
            base=committed,
            layout="",
            deltas=(),
            routes={},
            watermarks={},
            rows=0,
            sealed_at_ms=int(wall_ms()),
        )
    )


def _newest(files: Files, folder: str) -> int | None:
    """The newest epoch in a folder of Spark's log; None if there is none."""
    names = [file.name.rsplit("/", 1)[1] for file in files.below(folder)]
    return max((int(name) for name in names if name.isdigit()), default=None)


class OffsetLog:
    """Spark's log of offsets: a file for each epoch, with a version, the epoch's metadata, and a line for
    each source."""

    def __init__(self, folder: Folder) -> None:
        self._files = Files(folder.place)
        newest = _newest(self._files, "offsets")
        # Spark reads its position from these two.
        two = [] if newest is None else [n for n in (newest - 1, newest) if n >= 0]
        read = {n: self._files.read(f"offsets/{n}") for n in two}
        self._entries = {n: data.decode() for n, data in read.items() if data is not None}

    def sources(self) -> int | None:
        """Number of sources in the newest epoch; None if there is no epoch."""
        newest = self._entries.get(max(self._entries, default=-1), "").split("\n")
        return len(newest) - 2 if newest[0] == "v1" else None

    def offsets(self, epoch: int) -> list[str] | None:
        """Offset of each source after an epoch, as JSON, or "-" if it was not read; None if unknown."""
        data = self._files.read(f"offsets/{epoch}")
        lines = [] if data is None else data.decode().split("\n")
        return lines[2:] if lines[:1] == ["v1"] else None

    def begin_after(self, epoch: int, offsets: Sequence[str], now_ms: int) -> None:
        """Make Spark continue after this epoch, from these offsets. The commit is written last: until then
        Spark would run the epoch again."""
        if (
            self._files.read("metadata") is None
        ):  # Spark has never run it, and wants an id for its query
            self._files.write("metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
        facts = {"batchWatermarkMs": 0, "batchTimestampMs": now_ms, "conf": {}}
        lines = ["v1", json.dumps(facts), *offsets]
        done = ["v1", json.dumps({"nextBatchWatermarkMs": 0})]
        # Spark also reads the offsets of the previous epoch, although only a rerun needs them.
        before = [] if epoch == 0 else [(f"offsets/{epoch - 1}", lines)]
        for name, text in (*before, (f"offsets/{epoch}", lines), (f"commits/{epoch}", done)):
            folder, number = name.split("/")
            self._files.remove(f"{folder}/.{number}.crc")  # Hadoop's checksum of the old file
            self._files.write(name, "\n".join(text).encode())

    def have_sources(self, count: int) -> None:
        """Extend the log to this number of sources; the new ones are unread. The newest epoch is written
        last, so that an interruption does no harm."""
        for number, text in sorted(self._entries.items()):
            if missing := count + 2 - len(text.split("\n")):
                self._files.remove(f"offsets/.{number}.crc")  # Hadoop's checksum of the old file
                self._files.write(f"offsets/{number}", (text + "\n-" * missing).encode())

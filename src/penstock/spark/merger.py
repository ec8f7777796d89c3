"""Merges the epochs of a file sink while the query runs, with Spark's file systems and formats.

It runs in its own thread and never delays an epoch. A Spark job rewrites Parquet and ORC files; it takes one
task slot, or more for output of more than 128 MB. The driver concatenates JSON, CSV and text files. If a
merge fails, the folders stay as they are, and it is repeated later.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from pyspark.sql import SparkSession

from penstock.faults import point
from penstock.spark import private
from penstock.spark.merging import EpochFolders
from penstock.spark.sinks import Writer

_FILE_BYTES = 128 << 20
"""Size in bytes at which another file is started."""
_BUFFER = 1 << 16
"""Size of the copy buffer in bytes."""
_RENAMING = ("file", "hdfs", "viewfs")
"""Schemes of file systems that rename a folder at once, whatever its size."""

_SESSION = {
    # Values in folder names are written as they were read: "01" must not become a number.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.sources.partitionOverwriteMode": "static",
    # The driver lists folders itself, instead of one task per folder.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
}

_log = logging.getLogger("penstock.sinks")


class Merger:
    """Merges the committed epochs of one file sink from time to time."""

    def __init__(
        self, spark: SparkSession, sink: Writer, check: Callable[[], None] = lambda: None
    ) -> None:
        """`check` raises if another driver has taken over the query, and with it the merging."""
        self._check, self._context, self._sink = check, spark.sparkContext, sink
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="merger")
        self._task: Future[None] | None = None
        self._tag = f"penstock-merge-{secrets.token_hex(4)}"
        self._session = private.own_session(spark)
        for key, value in _SESSION.items():
            self._session.conf.set(key, value)
        self._folder = HadoopFolder(self._session, str(sink.options["path"]))
        self._folders = EpochFolders(self._folder, self._rewrite)
        self._first: int | None = None
        self._count = 0
        """Upper bound of the number of folders that could be merged."""

    def begin(self, epoch: int) -> None:
        """Prepare for an epoch. Before the first one, this completes a merge that a crash interrupted."""
        if self._first is None:
            self._folders.begin(epoch)
            self._count = len(self._folders.final(epoch))
            self._first = epoch

    def committed(self, epoch: int) -> None:
        """Note that an epoch is durable, so that those before it can be merged."""
        self._count += 1
        busy = self._task is not None and not self._task.done()
        if self._count > self._sink.merge_epochs and not busy:
            self._count = 0
            self._task = self._worker.submit(self._work, epoch)

    def stop(self) -> None:
        """End the merging. Only the few renames at the end of a merge are completed."""
        self._folder.ending = True
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._context.cancelJobsWithTag(self._tag)
        self._worker.shutdown()

    def _work(self, newest: int) -> None:
        context, many = self._context, self._sink.merge_epochs
        context.addJobTag(self._tag)
        context.setJobDescription(f"Penstock merges epochs in {self._folder.uri}")
        try:
            final = self._folders.final(newest)
            while len(final) >= many:
                self._folders.merge(final[:many])
                final = final[many:]
            self._count += len(final)
        except Exception as failed:
            if not self._folder.ending:
                _log.warning(
                    "Epochs in %s could not be merged: %s. They stay as they are until the next merge.",
                    self._folder.uri,
                    failed,
                    extra={"folder": self._folder.uri, "reason": str(failed)},
                )

    def _rewrite(self, folders: Sequence[str], to: str) -> None:
        self._folder.must_go_on()
        if self._sink.format in ("parquet", "orc"):
            self._rewrite_rows(folders, to)
        else:
            self._concatenate(folders, to)
        self._check()

    def _rewrite_rows(self, folders: Sequence[str], to: str) -> None:
        sink, root = self._sink, self._folder.uri
        options = {k: v for k, v in sink.options.items() if k != "path"}
        # Epochs of an earlier start may have other columns.
        before = int(folders[0].partition("=")[2]) < (self._first or 0)
        reader = self._session.read.format(sink.format).options(**options)
        if sink.partition_by:
            reader = reader.option("basePath", root)
        rows = reader.option("mergeSchema", before).load([f"{root}/{name}" for name in folders])
        if sink.partition_by:
            if rows.columns[-1 - len(sink.partition_by)] != "epoch":
                raise ValueError(
                    "the output has a column named epoch, which is also the name of its folders"
                )
            rows = rows.drop("epoch")
        size = sum(self._folder.sizes(name) for name in folders)
        options["mapreduce.fileoutputcommitter.marksuccessfuljobs"] = "false"
        writer = rows.coalesce(1 + size // _FILE_BYTES).write.format(sink.format).options(**options)
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        writer.mode("overwrite").save(f"{root}/{to}")

    def _concatenate(self, folders: Sequence[str], to: str) -> None:
        """Concatenate files separately for each folder below the epoch's, which `partition_by` has made."""
        options = {key.lower(): str(value).lower() for key, value in self._sink.options.items()}
        header = options.get("header") == "true"
        outputs: dict[tuple[str, str, tuple[str, int]], list[str]] = {}
        for name in folders:
            for file in sorted(self._folder.files(name)):
                below, _, last = file.rpartition("/")
                if not last.startswith(("_", ".")):
                    kind = re.split(r"[-.]c\d{3,}", last)[-1]
                    first = self._folder.first_line(f"{name}/{file}") if header else ("", 0)
                    outputs.setdefault((below, kind, first), []).append(f"{name}/{file}")
        for (below, kind, (_, skipped)), files in outputs.items():
            below = "/".join(filter(None, (to, below)))
            target = f"{below}/part-{secrets.token_hex(8)}-c%03d{kind}"
            self._folder.concatenate(files, target, skipped)


class HadoopFolder:
    """A folder at any URI that Spark can write to. See `merging.SinkFolder`."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self.ending = False
        """Whether long work should be interrupted."""
        jvm: Any = spark._jvm
        self._hadoop = jvm.org.apache.hadoop
        self._conf = private.hadoop_conf(spark)
        root = self._hadoop.fs.Path(uri)
        self._fs = root.getFileSystem(self._conf)
        self._root = self._fs.makeQualified(root)
        self.uri = str(self._root.toString())
        self._scheme = self._fs.getUri().getScheme()
        self._codecs = self._hadoop.io.compress.CompressionCodecFactory(self._conf)

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        if not self._fs.exists(path):
            return []
        return [status.getPath().getName() for status in self._fs.listStatus(path)]

    def files(self, folder: str) -> list[str]:
        return [name for name, _ in self._below(folder)]

    def sizes(self, folder: str) -> int:
        """Total size of all files in a folder, in bytes."""
        return sum(size for _, size in self._below(folder))

    def _below(self, folder: str) -> list[tuple[str, int]]:
        path, files = self._path(folder), []
        start = len(path.toUri().getPath()) + 1
        if self._fs.exists(path):
            listing = self._fs.listFiles(path, True)
            while listing.hasNext():
                status = listing.next()
                files.append((str(status.getPath().toUri().getPath())[start:], status.getLen()))
        return files

    def read(self, name: str) -> bytes | None:
        if not self._fs.exists(self._path(name)):
            return None
        stream = self._fs.open(self._path(name))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def write(self, name: str, data: bytes) -> None:
        self._about_to("write")
        hidden = f"{name}.tmp"
        stream = self._fs.create(self._path(hidden), True)
        try:
            stream.write(data)
            stream.hsync()
        finally:
            stream.close()
        self._renamed(hidden, name)

    def settle(self, folder: str) -> None:
        if self._scheme != "file":
            return
        root = str(self._path(folder).toUri().getPath())
        for below, _, files in os.walk(root):
            for name in (below, *(os.path.join(below, file) for file in files)):
                opened = os.open(name, os.O_RDONLY)
                try:
                    os.fsync(opened)
                finally:
                    os.close(opened)

    def rename(self, name: str, to: str) -> None:
        self._about_to("rename")
        self._renamed(name, to)

    def put_away(self, name: str, to: str) -> None:
        if self._scheme in _RENAMING:
            self._fs.mkdirs(self._path(to))
            self.rename(name, f"{to}/{name}")
        else:
            self.remove(name)

    def remove(self, name: str) -> None:
        path = self._path(name)
        if self._fs.exists(path):
            self._about_to("remove")
            self._fs.delete(path, True)

    def first_line(self, name: str) -> tuple[str, int]:
        """The first line of a text file, and its length in bytes with its line end."""
        stream, line = self._open(name), self._hadoop.io.Text()
        try:
            size = int(self._hadoop.util.LineReader(stream).readLine(line))
            return str(line.toString()), size
        finally:
            stream.close()

    def concatenate(self, files: Sequence[str], target: str, skipped: int) -> None:
        """Concatenate text files into files of about 128 MB. `target` is their name, with a %d for the
        number.

        The first `skipped` bytes, the header, are only kept once per file.
        """
        copy, out, size, number = self._hadoop.io.IOUtils, None, 0, 0
        try:
            for name in files:
                self.must_go_on()
                stream = self._open(name)
                try:
                    if out is None or size >= _FILE_BYTES:
                        if out is not None:
                            out.close()
                        out, size, number = self._create(target % number), 0, number + 1
                    else:
                        copy.skipFully(stream, skipped)
                    copy.copyBytes(stream, out, _BUFFER, False)
                finally:
                    stream.close()
                size += self._fs.getFileStatus(self._path(name)).getLen()
        finally:
            if out is not None:
                out.close()

    def must_go_on(self) -> None:
        if self.ending:
            raise InterruptedError("the query is stopping")

    def _open(self, name: str) -> Any:
        stream, codec = self._fs.open(self._path(name)), self._codecs.getCodec(self._path(name))
        return stream if codec is None else codec.createInputStream(stream)

    def _create(self, name: str) -> Any:
        codec = self._codecs.getCodec(self._path(name))
        stream = self._fs.create(self._path(name), True)
        return stream if codec is None else codec.createOutputStream(stream)

    def _renamed(self, name: str, to: str) -> None:
        if not self._fs.rename(self._path(name), self._path(to)):
            raise OSError(f"{name} of {self.uri} could not be renamed to {to}")

    def _about_to(self, operation: str) -> None:
        point("sink.merge", operation=operation)

    def _path(self, name: str) -> Any:
        return self._hadoop.fs.Path(self._root, name) if name else self._root

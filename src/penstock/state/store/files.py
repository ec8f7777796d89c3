"""The files of a checkpoint, on any `pyarrow.fs` file system.

Files are written atomically. On a local disk a file and its folder are durable when the write returns.
Failed operations are retried for a minute. A wrong S3 configuration is reported within seconds, at first use.

Files are read, never memory-mapped: if a mapped file shrinks or vanishes, as it may on a network file
system, the process dies. Large files are read in pieces.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from penstock import faults
from penstock.errors import PenstockError, SettingError, StoreError
from penstock.state.store.places import Place, open_filesystem, open_puts
from penstock.state.store.s3 import PASSING, TROUBLES, hint_for

_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 8.0, 10.0, 15.0, 15.0)
"""Seconds between retries of a failed operation: a minute in total."""
_PATIENCE_S = 60.0
"""Seconds, including the attempts themselves, after which an operation is not retried any more."""
_FIRST_PAUSES_S = (0.5, 1.0, 2.0, 3.0)
"""Seconds between attempts to reach a store for the first time. Few, since its address may be wrong."""
_AT_ONCE = 4 << 20
"""Bytes up to which a file is read in one request, rather than in pieces."""
_SYNCED = 8 << 20
"""Bytes of a large file that are written and synced at once, if its writer rests. Others that sync files
meanwhile need not wait for more than this."""
_LASTING = (errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)
_HINTS = {
    "read": "check the network and permissions, then restart the flow: it continues where it was",
    "remove": "check permissions and the network",
    "write": "check free space, permissions and the network, then restart the flow: the epoch was "
    "not committed and runs again",
}

T = TypeVar("T")
_log = logging.getLogger("penstock.store")
_numbers = itertools.count()
_in_memory = threading.Lock()


@dataclass(frozen=True)
class PreparedFile:
    """A file that was written and that nobody sees before it is published."""

    name: str
    """Path, relative to the root of the checkpoint."""
    data: bytes
    target: str | None
    """Path of a temporary file with the data, which is durable; None if there is none."""


@dataclass(frozen=True)
class StoredFile:
    """A file of a checkpoint."""

    name: str
    """Path, relative to the root of the checkpoint."""
    size: int
    """Size in bytes."""


def sleep_about(pause_s: float) -> None:
    """Sleep for 0.5 to 1.5 times `pause_s` seconds, so that many waiting processes do not retry at once."""
    time.sleep(pause_s * random.uniform(0.5, 1.5))


def no_rest() -> None:
    """Do not rest: for work that somebody waits for."""


class Files:
    """The files below one root. Thread-safe; several processes may use the same root.

    If it `hides`, unfinished files have names that readers of data skip.
    """

    def __init__(
        self,
        place: Place | str,
        pause: Callable[[float], None] = sleep_about,
        *,
        hides: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mark = "." if hides else ""
        self.uri = place if isinstance(place, str) else place.uri
        self.trouble = ""
        """The operation that is being retried, with its error; empty if there is none."""
        self._pause, self._clock = pause, clock
        self._fs, self._root = open_filesystem(place)
        self._puts = open_puts(place)
        self._local = self._fs.type_name == "local"
        self._renames = self._fs.type_name in ("local", "hdfs", "subtree", "mock")
        self._lasting: set[str] = set()
        """Local folders that are known to be durable."""

    @property
    def excludes(self) -> bool:
        """Whether `put_if_absent` is atomic: of two processes that put the same file, only one succeeds."""
        by_condition = self._puts is not None and self._puts.honoured
        return by_condition or self._fs.type_name in ("local", "mock")

    def must_answer(self) -> None:
        """Raise a `SettingError` within seconds if this is a folder on S3 whose bucket cannot be reached,
        does not exist, or cannot be accessed with these keys."""
        if self._fs.type_name != "s3":
            return
        bucket = self._root.split("/", 1)[0]
        for pause_s in (*_FIRST_PAUSES_S, None):
            try:
                # Only the first call reports wrong keys, and only the second a missing bucket.
                self._fs.get_file_info(
                    pafs.FileSelector(self._path("owners"), allow_not_found=True)
                )
                if self._fs.get_file_info(bucket).type != pafs.FileType.NotFound:
                    return
                refused = OSError(f"NoSuchBucket: there is no bucket {bucket}")
            except OSError as failed:
                refused = failed
            if pause_s is None or hint_for(refused, TROUBLES):
                break
            self._pause(pause_s)
        raise SettingError(
            f"cannot use the folder {self.uri}: {refused}",
            hint=hint_for(refused, TROUBLES | PASSING) or "check its bucket, keys and endpoint",
        ) from refused

    def read(self, name: str) -> bytes | None:
        """Read a small file; None if it does not exist."""

        def work() -> bytes:
            faults.point("store.read", file=name)
            with self._fs.open_input_stream(self._path(name)) as file:
                data: bytes = file.read()
                return data

        try:
            return self._patiently("read", name, work)
        except FileNotFoundError:
            return None

    def open(self, name: str) -> Bytes:
        """Open a file for reading. Raises a `FileNotFoundError` if it does not exist."""

        def work() -> Bytes:
            faults.point("store.read", file=name)
            file = self._fs.open_input_file(self._path(name))
            size = file.size()
            if size <= _AT_ONCE or self._fs.type_name == "mock":
                with file:
                    return file.read_buffer()
            read_at = file.read_at
            if self._local:
                file.close()
                read_at = partial(_read_at, self._path(name))
            return FilePieces(
                size, lambda *where: self._patiently("read", name, partial(read_at, *where))
            )

        return self._patiently("read", name, work)

    def write(
        self,
        name: str,
        data: bytes | pa.Buffer,
        *,
        durable: bool = True,
        rest: Callable[[], None] = no_rest,
    ) -> None:
        """Write a file atomically: by rename, or by the object store's own atomic put.

        A durable file survives a power failure once this returns. `rest` is called between pieces of a large
        file on a local disk.
        """

        def work() -> None:
            faults.point("store.write", file=name)
            self._replace(self._path(name), data, durable, rest)

        self._patiently("write", name, work)

    def prepare(self, name: str, data: bytes) -> PreparedFile:
        """Do most of the work of a durable write ahead, if the store has renames and the disk allows it."""
        target = None
        if self._local:
            with suppress(OSError):  # it is written, and the error told, when it is published
                target = self._written(self._path(name), data, durable=True, rest=no_rest)
        return PreparedFile(name, data, target)

    def publish(self, file: PreparedFile) -> None:
        """Write a prepared file, with the same result as `write`."""

        def work() -> None:
            faults.point("store.write", file=file.name)
            path = self._path(file.name)
            if file.target is None or not os.path.exists(file.target):
                self._replace(path, file.data, durable=True)
                return
            self._fs.move(file.target, path)
            _sync(os.path.dirname(path))

        self._patiently("write", file.name, work)

    def discard(self, file: PreparedFile) -> None:
        """Remove what is left of a prepared file that will not be published."""
        if file.target is not None:
            with suppress(OSError):
                os.remove(file.target)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a small file unless it exists, and return whether the file now has this content.

        Others may see the file before it is complete. If the store cannot do this atomically (`excludes`),
        the last of two concurrent writers wins, and both may get True: check again later.
        """

        def work() -> None:
            faults.point("store.write", file=name)
            path = self._path(name)
            if self._local:
                self._settle_folder(os.path.dirname(path))
                with suppress(FileExistsError):
                    self._put(path, data, durable=True, alone=True)
                _sync(os.path.dirname(path))
                return
            if self._puts is not None and self._puts.honoured:
                self._puts.put(path, data)
                if self._puts.honoured:
                    return
            with _in_memory:
                if not self._there(name):
                    self._replace(path, data, durable=True)

        self._patiently("write", name, work)
        return self.read(name) == data

    def exists(self, name: str) -> bool:
        def work() -> bool:
            faults.point("store.read", file=name)
            return self._there(name)

        return self._patiently("read", name, work)

    def below(self, folder: str) -> list[StoredFile]:
        """All files in a folder and its subfolders."""
        selector = pafs.FileSelector(self._path(folder), allow_not_found=True, recursive=True)
        start = len(self._root) + 1

        def work() -> list[StoredFile]:
            faults.point("store.read", file=folder)
            return [
                StoredFile(info.path[start:], info.size)
                for info in self._fs.get_file_info(selector)
                if info.type == pafs.FileType.File
            ]

        return self._patiently("read", folder, work)

    def remove(self, name: str, *, patient: bool = True) -> bool:
        """Remove a file; False if it does not exist. If not `patient`, an error is raised without retries, as
        an `OSError`."""

        def delete() -> None:
            self._fs.delete_file(self._path(name))

        try:
            if patient:
                self._patiently("remove", name, delete)
            else:
                delete()
        except FileNotFoundError:
            return False
        return True

    # -- retries

    def _patiently(self, doing: str, name: str, work: Callable[[], T]) -> T:
        """Run an operation, and retry it for up to a minute if the store fails.

        A missing file is not retried when it is read or removed.
        """
        what, began = f"cannot {doing} {name} of {self.uri}", ""
        waited_s, until_s = 0.0, self._clock() + _PATIENCE_S
        for pause_s in (*_PAUSES_S, None):
            try:
                result = work()
            except OSError as refused:
                if isinstance(refused, FileNotFoundError) and doing != "write":
                    raise
                if refused.errno == errno.ESTALE and doing != "write":
                    raise FileNotFoundError(errno.ENOENT, f"{name} was removed") from refused
                if pause_s is None or _lasts(refused) or self._clock() > until_s:
                    self.trouble = ""
                    hint = hint_for(refused, TROUBLES | PASSING) or _HINTS[doing]
                    raise StoreError(f"{what}: {refused}", hint=hint) from refused
                if not began:
                    began = f"{what}: {refused}"
                    _log.warning("%s; trying again for a minute", began, extra={"file": name})
                self.trouble = f"{began}; {waited_s:.0f} s so far"
                self._pause(pause_s)
                waited_s += pause_s
            else:
                if began:
                    self.trouble = ""
                    _log.warning(
                        "The store answers again: %s of %s is done after %.1f s of retries",
                        name,
                        self.uri,
                        waited_s,
                        extra={"file": name, "took_ms": round(1000 * waited_s)},
                    )
                return result
        raise AssertionError("not reached")

    # -- one attempt

    def _there(self, name: str) -> bool:
        exists: bool = self._fs.get_file_info(self._path(name)).type != pafs.FileType.NotFound
        return exists

    def _replace(
        self,
        path: str,
        data: bytes | pa.Buffer,
        durable: bool,
        rest: Callable[[], None] = no_rest,
    ) -> None:
        if not self._renames:
            return self._put(path, data)
        target = self._written(path, data, durable, rest)
        self._fs.move(target, path)
        if durable and self._local:
            _sync(os.path.dirname(path))
        return None

    def _written(
        self, path: str, data: bytes | pa.Buffer, durable: bool, rest: Callable[[], None]
    ) -> str:
        """Write a temporary file beside `path`, and return its path."""
        folder, name = os.path.split(path)
        target = f"{folder}/{self._mark}{name}.{os.getpid()}-{next(_numbers)}.tmp"
        if durable and self._local:
            self._settle_folder(folder)
        try:
            try:
                self._put(target, data, durable, rest=rest)
            except FileNotFoundError:
                self._fs.create_dir(folder, recursive=True)
                self._put(target, data, durable, rest=rest)
        except (OSError, PenstockError):
            with suppress(OSError):
                self._fs.delete_file(target)  # incomplete, on a disk that may be full
            raise
        return target

    def _put(
        self,
        path: str,
        data: bytes | pa.Buffer,
        durable: bool = False,
        alone: bool = False,
        rest: Callable[[], None] = no_rest,
    ) -> None:
        if not self._local:
            with self._fs.open_output_stream(path) as stream:
                stream.write(data)
            return
        how = os.O_WRONLY | os.O_CREAT | (os.O_EXCL if alone else os.O_TRUNC)
        file = os.open(path, how, 0o666)
        try:
            left = memoryview(data)
            while len(left):
                left = left[os.write(file, left[:_SYNCED]) :]
                if rest is not no_rest and len(left):
                    if durable:
                        os.fdatasync(file)
                    rest()
            if durable:
                os.fsync(file)
        finally:
            os.close(file)

    def _settle_folder(self, folder: str) -> None:
        """Create a folder, and make it and all folders above it durable."""
        if folder not in self._lasting:
            os.makedirs(folder, exist_ok=True)
        while folder not in self._lasting and folder != os.path.dirname(folder):
            _sync(os.path.dirname(folder))
            self._lasting.add(folder)
            folder = os.path.dirname(folder)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


class FilePieces:
    """A large file that is read in pieces, on demand."""

    def __init__(self, size: int, read_at: Callable[[int, int], bytes]) -> None:
        self.size, self._read_at = size, read_at

    def slice(self, offset: int, length: int) -> pa.Buffer:
        """Read `length` bytes at `offset`; fewer if the file was truncated meanwhile."""
        return pa.py_buffer(self._read_at(length, offset))


Bytes: TypeAlias = "pa.Buffer | FilePieces"
"""The contents of a file."""


def _read_at(path: str, length: int, offset: int) -> bytes:
    """Read bytes of a local file. It is not kept open, since a version may have more files than a process may
    open."""
    with open(path, "rb", buffering=0) as file:
        return os.pread(file.fileno(), length, offset)


def _lasts(refused: OSError) -> bool:
    """Whether an error is permanent, so that a retry would not help."""
    plain = isinstance(refused, PermissionError | NotADirectoryError | IsADirectoryError)
    return plain or refused.errno in _LASTING or bool(hint_for(refused, TROUBLES))


def _sync(folder: str) -> None:
    """Make the names in a folder durable. A folder that this user may not open is skipped."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    except OSError as refused:
        if refused.errno != errno.EINVAL:  # this file system cannot sync folders
            raise
    finally:
        os.close(handle)

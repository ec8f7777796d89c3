"""The files of a checkpoint, through any `pyarrow.fs` file system.

A file is written whole or not at all, and on a local disk it is there for good, with its folder,
when the write returns. A store that fails is asked again for a minute, whatever it was asked for; but what
is wrong with a folder on S3 is told when it is first reached.

Files are read, never mapped: a file that shrinks or vanishes under a mapping, as it may on a network
file system, ends the process. Large files are read in pieces.
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
from penstock.errors import SettingError, StoreError
from penstock.state.store.places import Place, open_filesystem, open_puts
from penstock.state.store.s3 import PASSING, TROUBLES, hint_for

_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 8.0, 10.0, 15.0, 15.0)
"""Waits between tries at what the store refused: a minute in all."""
_PATIENCE_S = 60.0
"""Seconds after which a store is not asked again, pauses and tries together."""
_FIRST_PAUSES_S = (0.5, 1.0, 2.0, 3.0)
"""Waits between tries to reach a store for the first time: its address may be wrong."""
_AT_ONCE = 4 << 20
"""Bytes of a file that are read in one request, rather than in pieces."""
_LASTING = (errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)
_HINTS = {
    "read": "check the network and permissions; starting the flow again continues where it was",
    "remove": "check permissions and the network",
    "write": "check free space, permissions and the network; the epoch was not committed, and "
    "starting the flow again continues before it",
}

T = TypeVar("T")
_log = logging.getLogger("penstock.store")
_numbers = itertools.count()
_in_memory = threading.Lock()


@dataclass(frozen=True)
class Found:
    """A file in a folder: its name from the root of the checkpoint, and its bytes."""

    name: str
    size: int


def sleep_about(pause_s: float) -> None:
    """Sleep for half to one and a half times as long: many that wait for a store come back one by one."""
    time.sleep(pause_s * random.uniform(0.5, 1.5))


class Files:
    """The files below one root. Any process may hold one for the same root, and use it in any thread.

    If it `hides`, files have names that readers of data skip until they are whole.
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
        """What the store is being waited for; empty if it is not."""
        self._pause, self._clock = pause, clock
        self._fs, self._root = open_filesystem(place)
        self._puts = open_puts(place)
        self._local = self._fs.type_name == "local"
        self._renames = self._fs.type_name in ("local", "hdfs", "subtree", "mock")
        self._lasting: set[str] = set()
        """Local folders that are known to survive a loss of power."""

    @property
    def excludes(self) -> bool:
        """Whether of two that put the same file only one can succeed."""
        by_condition = self._puts is not None and self._puts.honoured
        return by_condition or self._fs.type_name in ("local", "mock")

    def must_answer(self) -> None:
        """Raise a `SettingError` that says what to do, within seconds, if this is a folder of S3 whose bucket
        cannot be reached, is not there, or is not for these keys."""
        if self._fs.type_name != "s3":
            return
        bucket = self._root.split("/", 1)[0]
        for pause_s in (*_FIRST_PAUSES_S, None):
            try:
                # Only the first tells of wrong keys, and only the second of a bucket that is missing.
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
        """The bytes of a small file; None if it is not there."""

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
        """A file to look at; a `FileNotFoundError` if it is not there."""

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
        self, name: str, data: bytes | pa.Buffer, *, secret: bool = False, durable: bool = True
    ) -> None:
        """Write a file that appears whole: by rename, or by the object store's own atomic put.

        What is secret can be read by its owner only, in a local folder. What is durable survives a
        loss of power from here on.
        """

        def work() -> None:
            faults.point("store.write", file=name)
            self._replace(self._path(name), data, secret, durable)

        self._patiently("write", name, work)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a small file unless there is one; tells whether there is this one now.

        Others may find the file before all of it is written. Where the store cannot exclude others,
        the last of two that write at the same time wins, and both may have been told that it is
        theirs: look again later.
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
                    self._replace(path, data, secret=False, durable=True)

        self._patiently("write", name, work)
        return self.read(name) == data

    def exists(self, name: str) -> bool:
        def work() -> bool:
            faults.point("store.read", file=name)
            return self._there(name)

        return self._patiently("read", name, work)

    def below(self, folder: str) -> list[Found]:
        """All files in a folder and in the folders in it."""
        selector = pafs.FileSelector(self._path(folder), allow_not_found=True, recursive=True)
        start = len(self._root) + 1

        def work() -> list[Found]:
            faults.point("store.read", file=folder)
            return [
                Found(info.path[start:], info.size)
                for info in self._fs.get_file_info(selector)
                if info.type == pafs.FileType.File
            ]

        return self._patiently("read", folder, work)

    def remove(self, name: str, *, patient: bool = True) -> bool:
        """Remove a file; False if it is not there. Without patience, an `OSError` if that fails."""

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

    # -- patience

    def _patiently(self, doing: str, name: str, work: Callable[[], T]) -> T:
        """Do it; if the store fails, again and again for a minute.

        A file that is not there to be read or removed is told of at once.
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
                        "The store answers again: %s of %s is done after %.1f s",
                        name,
                        self.uri,
                        waited_s,
                        extra={"file": name, "took_ms": round(1000 * waited_s)},
                    )
                return result
        raise AssertionError("not reached")

    # -- one try

    def _there(self, name: str) -> bool:
        found: bool = self._fs.get_file_info(self._path(name)).type != pafs.FileType.NotFound
        return found

    def _replace(self, path: str, data: bytes | pa.Buffer, secret: bool, durable: bool) -> None:
        if not self._renames:
            return self._put(path, data)
        target = self._written(path, data, secret, durable)
        self._fs.move(target, path)
        if durable and self._local:
            _sync(os.path.dirname(path))
        return None

    def _written(self, path: str, data: bytes | pa.Buffer, secret: bool, durable: bool) -> str:
        """A file beside the path with this data, to be given that name."""
        folder, name = os.path.split(path)
        target = f"{folder}/{self._mark}{name}.{os.getpid()}-{next(_numbers)}.tmp"
        if durable and self._local:
            self._settle_folder(folder)
        try:
            try:
                self._put(target, data, secret, durable)
            except FileNotFoundError:
                self._fs.create_dir(folder, recursive=True)
                self._put(target, data, secret, durable)
        except OSError:
            with suppress(OSError):
                self._fs.delete_file(target)  # half of a file, on a disk that may be full
            raise
        return target

    def _put(
        self,
        path: str,
        data: bytes | pa.Buffer,
        secret: bool = False,
        durable: bool = False,
        alone: bool = False,
    ) -> None:
        if not self._local:
            with self._fs.open_output_stream(path) as stream:
                stream.write(data)
            return
        how = os.O_WRONLY | os.O_CREAT | (os.O_EXCL if alone else os.O_TRUNC)
        file = os.open(path, how, 0o600 if secret else 0o666)
        try:
            left = memoryview(data)
            while len(left):
                left = left[os.write(file, left) :]
            if durable:
                os.fsync(file)
        finally:
            os.close(file)

    def _settle_folder(self, folder: str) -> None:
        """Make a folder, and be sure that it and all above it stay."""
        if folder not in self._lasting:
            os.makedirs(folder, exist_ok=True)
        while folder not in self._lasting and folder != os.path.dirname(folder):
            _sync(os.path.dirname(folder))
            self._lasting.add(folder)
            folder = os.path.dirname(folder)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


class FilePieces:
    """A large file: pieces of it are read when they are asked for."""

    def __init__(self, size: int, read_at: Callable[[int, int], bytes]) -> None:
        self.size, self._read_at = size, read_at

    def slice(self, offset: int, length: int) -> pa.Buffer:
        """Bytes of the file; fewer of them if it was cut off meanwhile."""
        return pa.py_buffer(self._read_at(length, offset))


Bytes: TypeAlias = "pa.Buffer | FilePieces"
"""The bytes of a file."""


def _read_at(path: str, length: int, offset: int) -> bytes:
    """Bytes of a local file. It is not kept open: a version may have more files than a process may."""
    with open(path, "rb", buffering=0) as file:
        return os.pread(file.fileno(), length, offset)


def _lasts(refused: OSError) -> bool:
    """Whether asking again is in vain."""
    plain = isinstance(refused, PermissionError | NotADirectoryError | IsADirectoryError)
    return plain or refused.errno in _LASTING or bool(hint_for(refused, TROUBLES))


def _sync(folder: str) -> None:
    """Make the names in a folder durable; of a folder that is not ours to open they were before."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    except OSError as refused:
        if refused.errno != errno.EINVAL:  # this file system has no such thing
            raise
    finally:
        os.close(handle)

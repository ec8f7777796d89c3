"""The files of a checkpoint, through any `pyarrow.fs` file system.

A file is written whole or not at all, and files are read without copies where the file system
allows it: a local folder is memory-mapped, and the in-memory twin hands out its own memory.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs

from penstock import faults
from penstock.errors import SettingError, StoreError

_PAUSES_S = (0.1, 0.5, 2.0)
"""Waits between tries at a write that the store refused."""
_AT_ONCE = 4 << 20
"""Bytes of a remote file that are read in one request, rather than in pieces."""
_MEMORY = "memory://"

_numbers = itertools.count()
_twins: dict[str, pafs.FileSystem] = {}
"""Name -> in-memory file system, for as long as the process lives."""


@dataclass(frozen=True)
class Found:
    """A file in a folder: its name from the root of the checkpoint, and its bytes."""

    name: str
    size: int


class Files:
    """The files below one root. Stateless: any process may hold one for the same root."""

    def __init__(self, uri: str, pause: Callable[[float], None] = time.sleep) -> None:
        self.uri = uri
        self._pause = pause
        self._fs, self._root = open_filesystem(uri)
        self._local = self._fs.type_name == "local"
        self._renames = self._fs.type_name in ("local", "hdfs", "subtree", "mock")

    def read(self, name: str) -> bytes | None:
        """The bytes of a small file; None if it is not there."""
        try:
            with self._fs.open_input_stream(self._path(name)) as file:
                data: bytes = file.read()
                return data
        except FileNotFoundError:
            return None

    def open(self, name: str) -> Bytes:
        """A file to look at; a `FileNotFoundError` if it is not there."""
        path = self._path(name)
        if self._local:
            with pa.memory_map(path) as file:
                return file.read_buffer()
        file = self._fs.open_input_file(path)
        if file.size() <= _AT_ONCE or self._fs.type_name == "mock":
            with file:
                return file.read_buffer()
        return Remote(file)

    def write(self, name: str, data: bytes | pa.Buffer, *, secret: bool = False) -> None:
        """Write a file that appears whole: by rename, or by the object store's own atomic put.

        What is secret can be read by its owner only, in a local folder.
        """
        faults.point("store.write", file=name)
        path = self._path(name)
        target = f"{path}.{os.getpid()}-{next(_numbers)}.tmp" if self._renames else path
        try:
            self._put(target, data, secret)
        except FileNotFoundError:
            self._fs.create_dir(path.rsplit("/", 1)[0], recursive=True)
            self._put(target, data, secret)
        if self._renames:
            self._fs.move(target, path)

    def write_patiently(self, name: str, data: bytes | pa.Buffer) -> None:
        """Write what an epoch's commit depends on; a store that fails shortly is asked again."""
        for pause_s in (*_PAUSES_S, None):
            try:
                return self.write(name, data)
            except OSError as refused:
                if pause_s is None:
                    raise StoreError(
                        f"cannot write {name} of {self.uri}: {refused}",
                        hint="check free space, permissions and the network; the epoch was not "
                        "committed, and starting the flow again continues before it",
                    ) from refused
                self._pause(pause_s)
        return None

    def exists(self, name: str) -> bool:
        found: bool = self._fs.get_file_info(self._path(name)).type != pafs.FileType.NotFound
        return found

    def below(self, folder: str) -> list[Found]:
        """All files in a folder and in the folders in it."""
        selector = pafs.FileSelector(self._path(folder), allow_not_found=True, recursive=True)
        start = len(self._root) + 1
        return [
            Found(info.path[start:], info.size)
            for info in self._fs.get_file_info(selector)
            if info.type == pafs.FileType.File
        ]

    def remove(self, name: str) -> bool:
        """Remove a file; False if it is not there."""
        try:
            self._fs.delete_file(self._path(name))
        except FileNotFoundError:
            return False
        return True

    def _put(self, path: str, data: bytes | pa.Buffer, secret: bool) -> None:
        if secret and self._local:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        with self._fs.open_output_stream(path) as file:
            file.write(data)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


class Remote:
    """A file that is far away: pieces of it are read when they are asked for."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file
        self.size: int = file.size()

    def slice(self, offset: int, length: int) -> pa.Buffer:
        return pa.py_buffer(self._file.read_at(length, offset))


Bytes: TypeAlias = "pa.Buffer | Remote"
"""The bytes of a file."""


def open_filesystem(uri: str) -> tuple[pafs.FileSystem, str]:
    """The file system and path of a folder given as a path or a URI (s3a is taken as s3).

    memory://name is a folder in the memory of this process: the twin of a real one, for tests.
    """
    try:
        if uri.startswith(_MEMORY):
            name, _, folder = uri.removeprefix(_MEMORY).strip("/").partition("/")
            return _twins.setdefault(name, pafs._MockFileSystem()), folder or "root"
        if "://" not in uri and not uri.startswith("file:"):
            return pafs.LocalFileSystem(), os.path.abspath(uri)
        filesystem, path = pafs.FileSystem.from_uri(uri.replace("s3a://", "s3://", 1))
        return filesystem, path.rstrip("/")
    except (pa.ArrowException, OSError, ValueError) as refused:
        raise SettingError(
            f"cannot open the folder {uri!r}: {refused}",
            hint="use a local path, or a URI that pyarrow.fs knows: file://, s3://, gs://, hdfs://",
        ) from refused

"""Locations of checkpoints, in a form that every process of a query can open.

A folder is a path or a URI. The query part of a URI is for the file system, not part of the folder's name:
names below a folder go before it.

>>> below("s3://bucket/flow/?region=eu-west-1", "penstock")
's3://bucket/flow/penstock?region=eu-west-1'
>>> below("/data/what?", "penstock")
'/data/what?/penstock'
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.errors import SettingError
from penstock.state.store.s3 import S3_SCHEMES, ConditionalPuts, s3_arguments

_MEMORY = "memory://"

_twins: dict[str, pafs.FileSystem] = {}
"""Name -> in-memory file system, for the lifetime of the process."""


@dataclass(frozen=True)
class Owner:
    """One start of a flow on a checkpoint. The newest start owns the checkpoint."""

    generation: int
    """Number of starts before this one."""
    mark: str
    """A random word that is also in the store. A process that can read it there sees the same store."""


@dataclass(frozen=True)
class Place:
    """The location of a checkpoint, as a flow passes it to its hosts."""

    uri: str
    options: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    """Arguments for pyarrow's S3 file system. They contain secrets and are never shown."""
    owner: Owner | None = None
    """The start of a flow that opens it; None: a reader or a test."""


def below(uri: str, name: str) -> str:
    """The URI of a file or folder within a folder."""
    folder, mark, query = uri.partition("?") if "://" in uri else (uri, "", "")
    return f"{folder.rstrip('/')}/{name}{mark}{query}"


def local_uri(path: str) -> str:
    """The URI of a local folder, from its absolute path.

    >>> local_uri("/data/my flow/")
    'file:///data/my%20flow'
    """
    return f"file://{quote(path.rstrip('/'))}"


def open_filesystem(place: Place | str) -> tuple[pafs.FileSystem, str]:
    """Open the file system of a folder, and return it with the folder's path (s3a is treated as s3).

    memory://name is a folder in the memory of this process, for tests.
    """
    uri, options = (place, ()) if isinstance(place, str) else (place.uri, place.options)
    try:
        if uri.startswith(_MEMORY):
            name, _, folder = uri.removeprefix(_MEMORY).strip("/").partition("/")
            return _twins.setdefault(name, pafs._MockFileSystem()), folder or "root"
        scheme, _, rest = uri.partition(":")
        if scheme == "file" and rest.startswith("/"):
            path = rest.removeprefix("//").removeprefix("localhost")
            return pafs.LocalFileSystem(), os.path.abspath(unquote(path))
        if "://" not in uri:
            return pafs.LocalFileSystem(), os.path.abspath(os.path.expanduser(uri))
        if scheme in S3_SCHEMES:
            path, arguments = s3_arguments(rest.removeprefix("//"), options)
            if not {"region", "endpoint_override"} & set(arguments):
                arguments["region"] = pafs.resolve_s3_region(path.split("/")[0])
            return pafs.S3FileSystem(**arguments), path
        filesystem, path = pafs.FileSystem.from_uri(uri)
        return filesystem, path.rstrip("/")
    except (pa.ArrowException, OSError, ValueError, TypeError) as refused:
        raise SettingError(
            f"cannot open the folder {uri!r}: {refused}",
            hint="use a local path, or a URI that pyarrow.fs supports: file://, s3://, gs://, hdfs://",
        ) from refused


def open_puts(place: Place | str) -> ConditionalPuts | None:
    """Conditional puts for a folder on S3; None for other folders, or if boto3 is not installed."""
    uri, options = (place, ()) if isinstance(place, str) else (place.uri, place.options)
    scheme, _, rest = uri.partition("://")
    if scheme not in S3_SCHEMES:
        return None
    _, arguments = s3_arguments(rest, options)
    return ConditionalPuts(arguments) if ConditionalPuts.possible(arguments) else None

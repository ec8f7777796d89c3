"""Places: where a checkpoint is, as every process of a query can open it.

A folder is a path or a URI. What a URI says in its query belongs to the file system and not to the
folder: names below a folder go in front of it.

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
"""Name -> in-memory file system, for as long as the process lives."""


@dataclass(frozen=True)
class Owner:
    """One start of a flow on a checkpoint: the newest one owns it."""

    generation: int
    """How many starts there were before it."""
    mark: str
    """A random word, in the store as well: who reads it there sees the same store."""


@dataclass(frozen=True)
class Place:
    """A checkpoint as a started flow hands it to its hosts."""

    uri: str
    options: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    """Arguments for pyarrow's S3 file system, secrets among them: they are shown to nobody."""
    owner: Owner | None = None
    """On whose behalf it is opened; None: of somebody who only looks, or of a test."""


def below(uri: str, name: str) -> str:
    """The URI of a folder or file in a folder."""
    folder, mark, query = uri.partition("?") if "://" in uri else (uri, "", "")
    return f"{folder.rstrip('/')}/{name}{mark}{query}"


def local_uri(path: str) -> str:
    """The URI of a local folder, given by its absolute path.

    >>> local_uri("/data/my flow/")
    'file:///data/my%20flow'
    """
    return f"file://{quote(path.rstrip('/'))}"


def open_filesystem(place: Place | str) -> tuple[pafs.FileSystem, str]:
    """The file system and path of a folder (s3a is taken as s3).

    memory://name is a folder in the memory of this process: the twin of a real one, for tests.
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
            hint="use a local path, or a URI that pyarrow.fs knows: file://, s3://, gs://, hdfs://",
        ) from refused


def open_puts(place: Place | str) -> ConditionalPuts | None:
    """Puts on a condition, where a folder is on S3 and boto3 is there."""
    uri, options = (place, ()) if isinstance(place, str) else (place.uri, place.options)
    scheme, _, rest = uri.partition("://")
    if scheme not in S3_SCHEMES:
        return None
    _, arguments = s3_arguments(rest, options)
    return ConditionalPuts(arguments) if ConditionalPuts.possible(arguments) else None

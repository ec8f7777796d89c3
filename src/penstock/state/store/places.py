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
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import pyarrow as pa
import pyarrow.fs as pafs

from penstock.errors import SettingError

_MEMORY = "memory://"
_FLAGS = ("allow_bucket_creation", "allow_bucket_deletion", "force_virtual_addressing")
"""What a query may tell of S3 that is true or false."""

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
        if scheme in ("s3", "s3a", "s3n") and options:
            return _s3(rest.removeprefix("//"), dict(options))
        if scheme in ("s3a", "s3n"):
            uri = f"s3:{rest}"
        filesystem, path = pafs.FileSystem.from_uri(uri)
        return filesystem, path.rstrip("/")
    except (pa.ArrowException, OSError, ValueError, TypeError) as refused:
        raise SettingError(
            f"cannot open the folder {uri!r}: {refused}",
            hint="use a local path, or a URI that pyarrow.fs knows: file://, s3://, gs://, hdfs://",
        ) from refused


def _s3(address: str, options: dict[str, Any]) -> tuple[pafs.FileSystem, str]:
    """A folder of S3 with these options; what the URI's query says comes first."""
    path, _, query = address.partition("?")
    told: dict[str, Any] = dict(parse_qsl(query))
    options |= {n: v.lower() == "true" if n in _FLAGS else v for n, v in told.items()}
    path = unquote(path).rstrip("/")
    if not {"region", "endpoint_override"} & set(options):
        options["region"] = pafs.resolve_s3_region(path.split("/")[0])
    return pafs.S3FileSystem(**options), path


_CARRIED = {
    "access.key": "access_key",
    "secret.key": "secret_key",
    "session.token": "session_token",
    "endpoint.region": "region",
}
_NOT_CARRIED = (
    "aws.credentials.provider",
    "assumed.role.arn",
    "encryption.algorithm",
    "encryption.key",
    "server-side-encryption-algorithm",
    "server-side-encryption.key",
    "proxy.host",
    "signing-algorithm",
    "requester.pays.enabled",
    "custom.signers",
)
"""Settings of s3a that change who may read and write what, and that are not handed on to pyarrow."""
S3A_SETTINGS = (
    *_CARRIED,
    "endpoint",
    "connection.ssl.enabled",
    "path.style.access",
    *_NOT_CARRIED,
)
"""The settings of s3a that `s3_options` looks at."""


def s3_options(settings: Mapping[str, str]) -> tuple[tuple[tuple[str, Any], ...], list[str]]:
    """Hadoop's s3a settings, by their names behind `fs.s3a.`, as arguments of pyarrow's S3 file
    system; and the names of those that cannot be handed on.

    >>> s3_options({"endpoint": "http://minio:9000", "access.key": "me", "proxy.host": "p"})
    ((('access_key', 'me'), ('endpoint_override', 'minio:9000'), ('scheme', 'http')), ['proxy.host'])
    """
    options: dict[str, Any] = {
        to: settings[name] for name, to in _CARRIED.items() if settings.get(name)
    }
    endpoint = settings.get("endpoint", "")
    if endpoint:
        scheme, separator, address = endpoint.rpartition("://")
        secure = settings.get("connection.ssl.enabled", "true").lower() != "false"
        options["endpoint_override"] = address.rstrip("/")
        options["scheme"] = scheme if separator else "https" if secure else "http"
        # pyarrow puts the bucket into the path of an endpoint unless told not to; Hadoop must be told to.
        if settings.get("path.style.access", "true").lower() == "false":
            options["force_virtual_addressing"] = True
    missing = [name for name in _NOT_CARRIED if settings.get(name)]
    return tuple(sorted(options.items())), missing

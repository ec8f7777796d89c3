"""Whose a checkpoint is: the newest start's. An older driver that is still there stops.

Every start takes the next generation, by a file that only one can put there. Whoever is about to change
what others build on looks whether there is a newer generation. Between that look and the change an old
driver may have slept for hours, so nothing that a version is made of has a name that two generations
share: manifests, layouts and segments carry the generation, and among manifests that do not fit together
the newest generation's count (`current`). An older driver removes no file of a newer one.
"""

from __future__ import annotations

import getpass
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock import codec
from penstock.errors import CheckpointError, ProtocolError, SettingError
from penstock.state.store.files import Files
from penstock.state.store.places import Owner

_LOOKS_S = (0.1, 0.4, 1.0, 2.0)
"""Waits of a host between looks for the mark: a network file system may show new files late."""
_OF_TAG = re.compile(r"-[0-9a-f]+g(?P<generation>\d+)(-\d+)?\.")
_OF_MANIFEST = re.compile(r"^(?P<epoch>\d+)(?:-(?P<generation>\d+))?\.json")


@dataclass(frozen=True)
class OwnerFacts:
    """What the store says of a start."""

    mark: str
    machine: str
    pid: int
    user: str
    since_ms: int


def claim(files: Files, now_ms: int) -> Owner:
    """Take the checkpoint over from whoever had it."""
    mark = secrets.token_hex(8)
    facts = OwnerFacts(mark, socket.gethostname(), os.getpid(), _user(), now_ms)
    while True:
        generation = 1 + max((_number(found.name) for found in files.below("owners")), default=-1)
        if files.put_if_absent(_file(generation), codec.encode(facts)):
            return Owner(generation, mark)


def must_own(files: Files, owner: Owner) -> None:
    """Raise if a newer start has taken the checkpoint over."""
    # On S3 this is one request; to ask whether the file exists takes two.
    newer = files.read(_file(owner.generation + 1))
    if newer is None:
        if files.excludes:
            return
        newer = files.read(_file(owner.generation))
        facts = _facts(newer)
        if facts is not None and facts.mark == owner.mark:
            return
    facts = _facts(newer)
    who = "another start"
    if facts is not None:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(facts.since_ms / 1000))
        who = f"process {facts.pid} of {facts.user} on {facts.machine}, at {since} UTC,"
    raise CheckpointError(
        f"{who} has started a flow on {files.uri}: this query has stopped, and its epoch was not committed",
        hint="a checkpoint has one query at a time: stop one of the two, or give it another folder",
    )


def must_see(files: Files, owner: Owner, host: str, pause: Callable[[float], None]) -> None:
    """Raise if this process does not see the store that the driver has marked."""
    for pause_s in (*_LOOKS_S, None):
        facts = _read(files, owner.generation)
        if facts is not None and facts.mark == owner.mark:
            return
        if pause_s is not None:
            pause(pause_s)
    found = "another store" if files.below("owners") else "nothing"
    raise SettingError(
        f"host {host} on {socket.gethostname()} finds {found} at {files.uri}, where the driver keeps "
        "the state of this query",
        hint="give a checkpoint folder that all machines see: a shared folder with the same path "
        "everywhere, hdfs:// or s3://",
    )


def new_tag(owner: Owner | None) -> str:
    """A word that makes the name of a file one that was never used, with the generation in it.

    >>> generation_of(f"deltas/sum/000000000004-0-sum-1-{new_tag(Owner(3, ''))}.arrow")
    3
    """
    generation = f"g{owner.generation}" if owner is not None else ""
    return f"{secrets.token_hex(4)}{generation}"


def generation_of(file: str) -> int:
    """The generation that has written a file, by its name; 0 if the name does not tell.

    >>> generation_of("layouts/000000000031-77aa0b1fg12.json"), generation_of("manifests/000000000007-2.json")
    (12, 2)
    """
    folder, name = file.split("/", 1)[0], file.rsplit("/", 1)[1]
    found = (_OF_MANIFEST.match if folder == "manifests" else _OF_TAG.search)(name)
    return int(found["generation"] or 0) if found is not None else 0


def manifest_file(epoch: int, owner: Owner | None = None) -> str:
    """The name of a manifest; the first generation's are as they were before there were generations."""
    generation = f"-{owner.generation}" if owner is not None and owner.generation else ""
    return f"manifests/{epoch:012d}{generation}.json"


def current(files: Iterable[str]) -> dict[int, str]:
    """Epoch -> the file of its manifest, in order.

    Of an epoch's manifests the newest generation's counts. One that is older than that of an epoch
    before does not: its driver was no longer the owner when it wrote it.

    >>> names = ["000000000004", "000000000005", "000000000006", "000000000005-2", "000000000006-1"]
    >>> [file for file in current(f"manifests/{name}.json" for name in names).values()]
    ['manifests/000000000004.json', 'manifests/000000000005-2.json']
    """
    found = []
    for file in files:
        name = _OF_MANIFEST.match(file.rsplit("/", 1)[1])
        if name is not None and file.endswith(".json"):
            found.append((int(name["epoch"]), int(name["generation"] or 0), file))
    newest, chosen = 0, dict[int, str]()
    for epoch, generation, file in sorted(found):
        if generation >= newest:
            newest, chosen[epoch] = generation, file
    return chosen


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _file(generation: int) -> str:
    return f"owners/{generation:012d}.json"


def _number(file: str) -> int:
    name = file.rsplit("/", 1)[1].removesuffix(".json")
    return int(name) if name.isdigit() else -1


def _read(files: Files, generation: int) -> OwnerFacts | None:
    return _facts(files.read(_file(generation)))


def _facts(data: bytes | None) -> OwnerFacts | None:
    try:
        return None if data is None else codec.decode(data, OwnerFacts)
    except ProtocolError:
        return None

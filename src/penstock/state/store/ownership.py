"""Ownership of a checkpoint: the newest start of a flow owns it, and an older driver stops.

Every start takes the next generation, with a file that only one process can create. A driver checks for a
newer generation before it changes files that others build on. Between this check and the change, an old
driver may have been suspended for hours. So no file of a version has a name that two generations share:
the names of manifests, layouts and segments contain the generation. If manifests contradict each other,
those of the newest generation count (`current`). An older driver removes no file of a newer one.
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
"""Seconds between a host's attempts to read the mark. A network file system may show new files late."""
_OF_TAG = re.compile(r"-[0-9a-f]+g(?P<generation>\d+)(-\d+)?\.")
_OF_MANIFEST = re.compile(r"^(?P<epoch>\d+)(?:-(?P<generation>\d+))?\.json")


@dataclass(frozen=True)
class OwnerFacts:
    """The contents of an owner file: the process that started the flow, and when."""

    mark: str
    machine: str
    pid: int
    user: str
    since_ms: int
    """Time of the start, in Unix milliseconds."""


def claim(files: Files, now_ms: int) -> Owner:
    """Take over the checkpoint from its previous owner, if any."""
    mark = secrets.token_hex(8)
    facts = OwnerFacts(mark, socket.gethostname(), os.getpid(), _user(), now_ms)
    while True:
        generation = 1 + max((_number(file.name) for file in files.below("owners")), default=-1)
        if files.put_if_absent(_file(generation), codec.encode(facts)):
            return Owner(generation, mark)


def must_own(files: Files, owner: Owner) -> None:
    """Raise a `CheckpointError` if a newer start has taken over the checkpoint."""
    # On S3 reading takes one request; asking whether the file exists takes two.
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
        hint="only one query can run on a checkpoint: stop one of them, or use another folder for it",
    )


def must_see(files: Files, owner: Owner, host: str, pause: Callable[[float], None]) -> None:
    """Raise a `SettingError` if this process does not see the store that the driver has marked."""
    for pause_s in (*_LOOKS_S, None):
        facts = _read(files, owner.generation)
        if facts is not None and facts.mark == owner.mark:
            return
        if pause_s is not None:
            pause(pause_s)
    seen = "another store" if files.below("owners") else "nothing"
    raise SettingError(
        f"host {host} on {socket.gethostname()} finds {seen} at {files.uri}, where the driver stores "
        "the state of this query",
        hint="use a checkpoint folder that all machines can reach: a shared folder with the same path "
        "everywhere, hdfs:// or s3://",
    )


def new_tag(owner: Owner | None) -> str:
    """A random word that makes file names unique, followed by the generation.

    >>> generation_of(f"deltas/sum/000000000004-0-sum-1-{new_tag(Owner(3, ''))}.arrow")
    3
    """
    generation = f"g{owner.generation}" if owner is not None else ""
    return f"{secrets.token_hex(4)}{generation}"


def generation_of(file: str) -> int:
    """The generation that wrote a file, from its name; 0 if the name has none.

    >>> generation_of("layouts/000000000031-77aa0b1fg12.json"), generation_of("manifests/000000000007-2.json")
    (12, 2)
    """
    folder, name = file.split("/", 1)[0], file.rsplit("/", 1)[1]
    match = (_OF_MANIFEST.match if folder == "manifests" else _OF_TAG.search)(name)
    return int(match["generation"] or 0) if match is not None else 0


def manifest_file(epoch: int, owner: Owner | None = None) -> str:
    """The file name of a manifest. The first generation's names have no generation, as in older releases."""
    generation = f"-{owner.generation}" if owner is not None and owner.generation else ""
    return f"manifests/{epoch:012d}{generation}.json"


def current(files: Iterable[str]) -> dict[int, str]:
    """Epoch -> file of its manifest, in order.

    Of several manifests of an epoch, the newest generation's counts. A manifest of an older generation than
    an earlier epoch's is ignored: its driver was no longer the owner when it wrote it.

    >>> names = ["000000000004", "000000000005", "000000000006", "000000000005-2", "000000000006-1"]
    >>> [file for file in current(f"manifests/{name}.json" for name in names).values()]
    ['manifests/000000000004.json', 'manifests/000000000005-2.json']
    """
    manifests = []
    for file in files:
        name = _OF_MANIFEST.match(file.rsplit("/", 1)[1])
        if name is not None and file.endswith(".json"):
            manifests.append((int(name["epoch"]), int(name["generation"] or 0), file))
    newest, chosen = 0, dict[int, str]()
    for epoch, generation, file in sorted(manifests):
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

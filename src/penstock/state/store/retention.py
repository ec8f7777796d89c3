"""Retention: which files of a checkpoint are still needed, and removing the others.

The newest versions are kept, at least two: Spark may replay the last epoch, and then the version
before it is the one to start from. A file is needed if the manifest or layout of a kept version
names it. Of the others, those stay that may be named yet: files of epochs that have not been
sealed, files of compactions under way, and all files of a newer start than the one that cleans.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from penstock.errors import SettingError, StoreError
from penstock.state.store.files import Found
from penstock.state.store.ownership import generation_of
from penstock.state.store.store import Store

_FOLDERS = ("manifests", "layouts", "deltas", "runs", "snapshots")
"""In the order of removal: what is named goes after what names it."""
_DIGITS = 12


@dataclass(frozen=True)
class Cleaned:
    """What was removed."""

    files: int
    bytes: int


def clean(
    store: Store,
    keep: int,
    newest: int,
    active_tags: Collection[str] = (),
    check: Callable[[], None] = lambda: None,
) -> Cleaned:
    """Remove what the versions from `newest` back, `keep` of them, do not need.

    Reads all that it keeps by before it removes anything, so a checkpoint that is damaged stays as
    it is. Safe to break off, and to run beside readers: see `StateReader`. The tag of a compaction
    is active from its first order until a manifest names its layout, or it is given up. `check` is
    called before each file is removed, and may raise to break off.

    A file that cannot be removed does not keep the others: what is named by it stays for the next
    time, and the first such error is raised at the end.
    """
    if keep < 2:
        raise SettingError(
            f"cannot keep {keep} versions", hint="keep at least 2: Spark may replay the last epoch"
        )
    needed = _needed(store, keep, newest)
    store.must_own()
    files = size = 0
    trouble: OSError | None = None
    for folder in _FOLDERS:
        for found in sorted(store.files.below(folder), key=lambda found: found.name):
            if found.name in needed or _may_be_named_yet(found, newest, active_tags):
                continue
            if store.owner is not None and generation_of(found.name) > store.owner.generation:
                continue
            check()
            try:
                removed = store.files.remove(found.name, patient=False)
            except OSError as refused:
                trouble = trouble or refused
                continue
            files, size = files + removed, size + removed * found.size
        if trouble is not None:
            raise StoreError(
                f"cannot remove files of {store.uri}: {trouble}",
                hint="check permissions and the network; they are removed later",
            ) from trouble
    return Cleaned(files, size)


def _needed(store: Store, keep: int, newest: int) -> set[str]:
    """The files of the kept versions, and of any beyond the newest."""
    manifests = store.manifest_files()
    needed: set[str] = set()
    known = None
    for version in manifests:
        if version <= newest - keep or (
            version != newest and not _whole(store, version, manifests)
        ):
            continue
        known = store.chain(version, known, manifests)
        needed |= {manifests[manifest.epoch] for manifest in (*known.manifests, known.manifest)}
        needed |= {ref.file for m in (*known.manifests, known.manifest) for ref in m.deltas}
        if known.layout is not None:
            needed |= {known.layout.file, *(ref.file for ref in known.layout.refs())}
    return needed


def _whole(store: Store, version: int, manifests: dict[int, str]) -> bool:
    """Whether all is there that a version builds on.

    When fewer versions were kept before, a manifest may be left for the sake of later ones only.
    """
    manifest = store.read_manifest(version, manifests)
    return (
        manifest is not None
        and version - manifest.base <= len(manifests) + 1
        and set(range(manifest.base + 1, version)) <= set(manifests)
        and (not manifest.layout or store.files.exists(manifest.layout))
    )


def _may_be_named_yet(found: Found, newest: int, active_tags: Collection[str]) -> bool:
    """Names begin with an epoch or version; those of compactions go on with a tag."""
    folder, name = found.name.split("/", 1)[0], found.name.rsplit("/", 1)[1]
    number, rest = name[:_DIGITS], name[_DIGITS + 1 :]
    if not number.isdigit() or int(number) > newest:
        return True
    if folder in ("manifests", "deltas"):
        return False
    return any(rest.startswith((f"{tag}-", f"{tag}.")) for tag in active_tags)

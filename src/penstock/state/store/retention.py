"""Retention: removing the files of a checkpoint that are no longer needed.

The newest versions are kept, at least two: Spark may replay the last epoch, which then starts from the
version before it. A file is needed if the manifest or layout of a kept version names it. Files that may be
named later stay too: those of epochs that are not sealed, of running compactions, and of newer starts than
the one that cleans up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from penstock.errors import SettingError, StoreError
from penstock.state.store.files import StoredFile
from penstock.state.store.ownership import generation_of
from penstock.state.store.store import Store

_FOLDERS = ("manifests", "layouts", "deltas", "runs", "snapshots")
"""Folders in the order of removal: a file is removed after the files that name it."""
_DIGITS = 12


@dataclass(frozen=True)
class Cleaned:
    """The result of a clean-up: numbers of removed files and bytes."""

    files: int
    bytes: int


def clean(
    store: Store,
    keep: int,
    newest: int,
    active_tags: Collection[str] = (),
    check: Callable[[], None] = lambda: None,
) -> Cleaned:
    """Remove the files that the newest `keep` versions, up to `newest`, do not need.

    All manifests and layouts to keep are read first, so a damaged checkpoint stays as it is. Safe to
    interrupt, and to run beside readers (see `StateReader`). The tag of a compaction is active from its
    first request until a manifest names its layout, or it is cancelled. `check` is called before each file
    is removed, and may raise to cancel.

    If a file cannot be removed, the others in its folder still are. Folders after it are left for the next
    time, and the first error is raised.
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
        for file in sorted(store.files.below(folder), key=lambda file: file.name):
            if file.name in needed or _may_be_named_yet(file, newest, active_tags):
                continue
            if store.owner is not None and generation_of(file.name) > store.owner.generation:
                continue
            check()
            try:
                removed = store.files.remove(file.name, patient=False)
            except OSError as refused:
                trouble = trouble or refused
                continue
            files, size = files + removed, size + removed * file.size
        if trouble is not None:
            raise StoreError(
                f"cannot remove files of {store.uri}: {trouble}",
                hint="check permissions and the network; the next clean-up tries again",
            ) from trouble
    return Cleaned(files, size)


def _needed(store: Store, keep: int, newest: int) -> set[str]:
    """Files of the kept versions, and of any version after the newest."""
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
    """Whether all files exist that a version builds on.

    If fewer versions were kept before, a manifest may have stayed only because later ones build on it.
    """
    manifest = store.read_manifest(version, manifests)
    return (
        manifest is not None
        and version - manifest.base <= len(manifests) + 1
        and set(range(manifest.base + 1, version)) <= set(manifests)
        and (not manifest.layout or store.files.exists(manifest.layout))
    )


def _may_be_named_yet(file: StoredFile, newest: int, active_tags: Collection[str]) -> bool:
    """Whether a manifest or layout may still name a file: by the epoch and the tag in its name."""
    folder, name = file.name.split("/", 1)[0], file.name.rsplit("/", 1)[1]
    number, rest = name[:_DIGITS], name[_DIGITS + 1 :]
    if not number.isdigit() or int(number) > newest:
        return True
    if folder in ("manifests", "deltas"):
        return False
    return any(rest.startswith((f"{tag}-", f"{tag}.")) for tag in active_tags)

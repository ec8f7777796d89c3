"""Renaming of steps in a checkpoint.

A segment does not name its step; manifests and layouts do. When a flow starts with other step names than
before, its manifests are written again with the new names, as manifests of the new generation. The segments
stay as they are.

The new names are written to `flow.json` first, with the generation from which they are valid. So the next
start can finish a renaming that was interrupted: the generation of a file determines its names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from penstock.errors import CheckpointError
from penstock.state.store.manifest import (
    DeltaRef,
    Layout,
    Manifest,
    Renaming,
    SegmentRef,
    StepLayout,
)
from penstock.state.store.ownership import generation_of
from penstock.state.store.store import Store

Names = Mapping[str, str]
"""Old name -> new name of each step."""

_HOST_FACTS = ("host", "source", "home")


def rename_steps(store: Store, renamings: Iterable[Renaming]) -> None:
    """Rewrite all manifests that have old names with the new ones. Can be repeated after a crash.

    The newest is written first, since an older manifest of a newer generation would invalidate it. A damaged
    manifest is skipped, since no flow can continue from it.
    """
    layouts: dict[str, str] = {}
    renamings = list(renamings)
    for epoch, file in sorted(store.manifest_files().items(), reverse=True):
        names = names_since(generation_of(file), renamings)
        if not names:
            continue
        try:
            manifest = store.read_manifest(epoch, {epoch: file})
            assert manifest is not None
            if manifest.layout and manifest.layout not in layouts:
                layout = renamed_layout(store.read_layout(manifest.layout), names, store.new_tag())
                layouts[manifest.layout] = store.write_layout(layout)
        except CheckpointError:
            continue
        layout_file = layouts.get(manifest.layout, "")
        store.write_manifest(renamed_manifest(manifest, names, layout_file))


def names_since(generation: int, renamings: Iterable[Renaming]) -> dict[str, str]:
    """Step name in files of a generation -> current name; empty if the names have not changed since.

    >>> steps = [Renaming(2, {"a-2": "a-1", "a-4": "a-2"}), Renaming(3, {"a-1": "clicks", "a-2": "a-2"})]
    >>> names_since(1, steps), names_since(2, steps), names_since(3, steps)
    ({'a-2': 'clicks', 'a-4': 'a-2'}, {'a-1': 'clicks', 'a-2': 'a-2'}, {})
    """
    names: dict[str, str] = {}
    for renaming in renamings:
        if renaming.generation > generation:
            first = names or {old: old for old in renaming.names}
            names = {old: renaming.names.get(new, new) for old, new in first.items()}
    return names


def renamed_manifest(manifest: Manifest, names: Names, layout: str) -> Manifest:
    """A copy of the manifest with the new names of steps and hosts, and with this layout file."""
    return replace(
        manifest,
        layout=layout,
        deltas=tuple(_renamed_delta(ref, names) for ref in manifest.deltas),
        routes={
            _step(step, names): facts | {"hosts": [_host(host, names) for host in facts["hosts"]]}
            for step, facts in manifest.routes.items()
        },
        watermarks={_step(step, names): mark for step, mark in manifest.watermarks.items()},
        placements={
            _step(step, names): [_renamed_placement(facts, names) for facts in groups]
            for step, groups in manifest.placements.items()
        },
    )


def renamed_layout(layout: Layout, names: Names, tag: str) -> Layout:
    """A copy of the layout with the new names of steps and a new tag. It names the same files."""
    steps = {
        _step(step, names): _renamed_files(files, names) for step, files in layout.steps.items()
    }
    return replace(layout, tag=tag, steps=steps)


def _renamed_files(files: StepLayout, names: Names) -> StepLayout:
    return StepLayout(
        {slot: _renamed_segment(ref, names) for slot, ref in files.snapshots.items()},
        tuple(_renamed_segment(ref, names) for ref in files.runs),
    )


def _renamed_segment(ref: SegmentRef, names: Names) -> SegmentRef:
    return replace(ref, step=_step(ref.step, names))


def _renamed_delta(ref: DeltaRef, names: Names) -> DeltaRef:
    return replace(ref, step=_step(ref.step, names), host=_host(ref.host, names))


def _renamed_placement(facts: dict[str, Any], names: Names) -> dict[str, Any]:
    hosts = {name: facts[name] for name in _HOST_FACTS if facts.get(name) is not None}
    return facts | {name: _host(host, names) for name, host in hosts.items()}


def _step(step: str, names: Names) -> str:
    return names.get(step, step)


def _host(host: str, names: Names) -> str:
    """The new id of a host. An id starts with the name of the host's step."""
    step, slash, number = host.rpartition("/")
    return f"{_step(step, names)}{slash}{number}"

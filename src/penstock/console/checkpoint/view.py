"""What `penstock state` prints: tables for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Column
from rich.text import Text

from penstock import codec
from penstock.console.checkpoint.facts import (
    Change,
    Entries,
    FileSum,
    KeyHistory,
    Overview,
    SlotGroup,
    Slots,
    SnapshotSum,
    StateEntry,
    StepOverview,
)
from penstock.console.terminal import counted, facts, listing
from penstock.state.keys.text import plain, shown

_COLLECTIONS = (".__list", ".__map")
"""How the columns of list and map state end."""


def as_json(found: Overview | Entries | KeyHistory | Sequence[Slots]) -> str:
    """All of it, with nothing left out or shortened."""
    told = [asdict(one) for one in found] if isinstance(found, Sequence) else asdict(found)
    return codec.text(plain(told), indent=2)


def draw_overview(overview: Overview) -> RenderableType:
    if overview.epoch is None or overview.sealed_at_ms is None:
        epoch = "no epoch is sealed yet"
    else:
        epoch = f"epoch {overview.epoch}, sealed {_moment(overview.sealed_at_ms)}"
    head = Text.assemble(("flow ", "dim"), (overview.flow, "bold"), f"  {epoch}")
    return Group(Text(overview.checkpoint, "dim"), head, *map(_draw_step, overview.steps))


def draw_entries(found: Entries) -> RenderableType:
    if not found.entries:
        return Text(f"{found.step} has no entries at epoch {found.epoch}")
    first = found.entries[0]
    columns = [name for name in first.state if not _own(name)]
    keys = [Column(Text(name), style="cyan", overflow="fold") for name in first.key]
    values = [Column(Text(_title(name)), overflow="fold") for name in columns]
    where = [Column(name, style="dim") for name in ("slot", "host", "epoch")]
    table = listing(*keys, *values, *where)
    for entry in found.entries:
        told = [*entry.key.values(), *(entry.state[name] for name in columns)]
        texts = [Text(shown(value)) for value in told]
        table.add_row(*texts, str(entry.slot), Text(entry.host), _when(entry))
    count = f"{len(found.entries):,} of {found.total:,} entries"
    return Group(table, Text(f"{found.step} at epoch {found.epoch}: {count}", "dim"))


def draw_history(found: KeyHistory) -> RenderableType:
    entry = found.entry
    known = facts()
    for name, value in entry.key.items():
        known.add_row(Text(name), Text(shown(value), "cyan"))
    for name, value in entry.state.items():
        known.add_row(Text(_title(name)), Text(shown(value)))
    known.add_row("slot", Text.assemble(f"{entry.slot}, owned by ", entry.host))
    columns = [name for name in entry.state if not _own(name)]
    titles = [Column(Text(_title(name)), overflow="fold") for name in columns]
    table = listing("epoch", "", "file", *titles)
    for change in found.changes:
        told = [_told(change, name) for name in columns]
        if not change.present:
            told = [Text("removed", "dim")]
        table.add_row(_when(change), change.kind, Text(change.file, "dim"), *told)
    head = Text.assemble((found.step, "bold"), f" at epoch {found.epoch}")
    parts = any(change.gone for change in found.changes)
    counts = "what is added goes onto what was there" if parts else "the last one counts"
    came = Text(f"\nevery file that tells of it, oldest first; {counts}", "dim")
    return Group(head, known, came, table)


def draw_slots(found: Slots) -> RenderableType:
    titles = ("snapshots", "runs", "deltas")
    stored = [Column(title, overflow="fold", style="dim") for title in titles]
    table = listing("slots", "host", "since version", "why", "from", "meant for", *stored)
    for group in found.groups:
        table.add_row(*_placed(group), *_stored(group))
    layout = "no layout yet" if found.layout is None else f"layout of version {found.layout}"
    head = Text.assemble(
        (found.step, "bold"), f" at epoch {found.epoch}: {found.slots} slots, {layout}"
    )
    return Group(head, table)


def _placed(group: SlotGroup) -> list[Text]:
    came = group.since is not None and group.since >= 0
    source = group.source or ("the store" if came else "-")
    home = ("here", "dim") if group.home == group.host else (group.home, "yellow")
    return [
        Text(group.slots or "none", "" if group.slots else "dim"),
        Text(group.host, "cyan"),
        Text(f"{group.since}" if came else "-"),
        Text(group.why or "-"),
        Text(source),
        Text.assemble(home),
    ]


def _stored(group: SlotGroup) -> list[str]:
    if not group.slots:
        return ["-", "-", "-"]
    return [_snapshots(group.snapshots), _sum(group.runs), _sum(group.deltas)]


def _snapshots(found: SnapshotSum) -> str:
    if not found.slots:
        return "none"
    versions = (
        f"{found.oldest}" if found.oldest == found.newest else f"{found.oldest}-{found.newest}"
    )
    return f"{counted(found.slots, 'slot')}, version {versions}, {found.bytes:,} bytes"


def _draw_step(step: StepOverview) -> RenderableType:
    known = facts()
    known.add_row("key", _schema(step.keys) or "none: one entry for everything")
    known.add_row("state", _schema(step.state))
    entries = "unknown: files are damaged" if step.entries is None else f"{step.entries:,}"
    known.add_row("entries", entries)
    known.add_row("layout", "none yet" if step.layout is None else f"version {step.layout}")
    known.add_row("snapshots", _sum(step.snapshots))
    known.add_row("runs", _sum(step.runs))
    known.add_row(
        "deltas", _sum(step.deltas) + ("" if step.layout is None else " since the layout")
    )
    hosts = ", ".join(f"{host} ({slots})" for host, slots in step.hosts.items())
    known.add_row("slots", f"{step.slots}" + (f": {hosts}" if hosts else ""))
    if step.watermark_ms is not None:
        known.add_row("watermark", _moment(step.watermark_ms))
    for problem in step.damaged:
        known.add_row(Text("damaged", "red"), Text(problem, "red"))
    return Group(Text(f"\n{step.id}", "bold"), known)


def _sum(found: FileSum) -> str:
    if not found.files:
        return "none"
    return f"{counted(found.files, 'file')}, {found.bytes:,} bytes"


def _when(found: StateEntry | Change) -> str:
    """An epoch, or up to which one: runs and snapshots hold the changes of many."""
    return f"{found.epoch}" if found.kind == "delta" else f"<= {found.epoch}"


def _told(change: Change, name: str) -> Text:
    """A value, or what was put in and taken away."""
    value = Text(shown(change.state[name]))
    if name not in change.gone:
        return value
    told = Text.assemble(("added ", "dim"), value)
    gone = change.gone[name]
    if gone:
        told.append(" gone ", "dim").append(
            f"the first {gone}" if name.endswith(".__list") else shown(gone)
        )
    return told


def _schema(columns: dict[str, str]) -> Text:
    return Text(", ".join(f"{name} {type}" for name, type in columns.items()))


def _own(name: str) -> bool:
    """A column of Penstock's own bookkeeping, not of anybody's state."""
    return name.rsplit(".", 1)[-1].startswith("__") and not name.endswith(_COLLECTIONS)


def _title(name: str) -> str:
    """What users call a column: list and map state have one column each.

    >>> _title("pages.__map"), _title("seen.n")
    ('pages', 'seen.n')
    """
    return name.rsplit(".", 1)[0] if name.endswith(_COLLECTIONS) else name


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

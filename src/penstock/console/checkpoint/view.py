"""The output of `penstock state`: tables for people, JSON for programs."""

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
"""Suffixes of the columns of list and map state."""


def as_json(result: Overview | Entries | KeyHistory | Sequence[Slots]) -> str:
    """The complete result as JSON."""
    value = [asdict(item) for item in result] if isinstance(result, Sequence) else asdict(result)
    return codec.text(plain(value), indent=2)


def draw_overview(overview: Overview) -> RenderableType:
    if overview.epoch is None or overview.sealed_at_ms is None:
        epoch = "no epoch is sealed yet"
    else:
        epoch = f"epoch {overview.epoch}, sealed {_moment(overview.sealed_at_ms)}"
    head = Text.assemble(("flow ", "dim"), (overview.flow, "bold"), f"  {epoch}")
    return Group(Text(overview.checkpoint, "dim"), head, *map(_draw_step, overview.steps))


def draw_entries(result: Entries) -> RenderableType:
    if not result.entries:
        return Text(f"{result.step} has no entries at epoch {result.epoch}")
    first = result.entries[0]
    columns = [name for name in first.state if not _own(name)]
    keys = [Column(Text(name), style="cyan", overflow="fold") for name in first.key]
    values = [Column(Text(_title(name)), overflow="fold") for name in columns]
    where = [Column(name, style="dim") for name in ("slot", "host", "epoch")]
    table = listing(*keys, *values, *where)
    for entry in result.entries:
        row = [*entry.key.values(), *(entry.state[name] for name in columns)]
        texts = [Text(shown(value)) for value in row]
        table.add_row(*texts, str(entry.slot), Text(entry.host), _when(entry))
    count = f"{len(result.entries):,} of {result.total:,} entries"
    return Group(table, Text(f"{result.step} at epoch {result.epoch}: {count}", "dim"))


def draw_history(result: KeyHistory) -> RenderableType:
    entry = result.entry
    known = facts()
    for name, value in entry.key.items():
        known.add_row(Text(name), Text(shown(value), "cyan"))
    for name, value in entry.state.items():
        known.add_row(Text(_title(name)), Text(shown(value)))
    known.add_row("slot", Text.assemble(f"{entry.slot}, owned by ", entry.host))
    columns = [name for name in entry.state if not _own(name)]
    titles = [Column(Text(_title(name)), overflow="fold") for name in columns]
    table = listing("epoch", "", "file", *titles)
    for change in result.changes:
        values = [_change_text(change, name) for name in columns]
        if not change.present:
            values = [Text("removed", "dim")]
        table.add_row(_when(change), change.kind, Text(change.file, "dim"), *values)
    head = Text.assemble((result.step, "bold"), f" at epoch {result.epoch}")
    partial = any(change.gone for change in result.changes)
    rule = "each adds to those before it" if partial else "the last one is valid"
    title = Text(f"\nfiles that contain this key, oldest first; {rule}", "dim")
    return Group(head, known, title, table)


def draw_slots(result: Slots) -> RenderableType:
    titles = ("snapshots", "runs", "deltas")
    stored = [Column(title, overflow="fold", style="dim") for title in titles]
    table = listing("slots", "host", "since version", "why", "from", "to move to", *stored)
    for group in result.groups:
        table.add_row(*_placed(group), *_stored(group))
    layout = "no layout yet" if result.layout is None else f"layout of version {result.layout}"
    head = Text.assemble(
        (result.step, "bold"), f" at epoch {result.epoch}: {result.slots} slots, {layout}"
    )
    return Group(head, table)


def _placed(group: SlotGroup) -> list[Text]:
    moved = group.since is not None and group.since >= 0
    source = group.source or ("the store" if moved else "-")
    home = ("-", "dim") if group.home == group.host else (group.home, "yellow")
    return [
        Text(group.slots or "none", "" if group.slots else "dim"),
        Text(group.host, "cyan"),
        Text(f"{group.since}" if moved else "-"),
        Text(group.why or "-"),
        Text(source),
        Text.assemble(home),
    ]


def _stored(group: SlotGroup) -> list[str]:
    if not group.slots:
        return ["-", "-", "-"]
    return [_snapshots(group.snapshots), _sum(group.runs), _sum(group.deltas)]


def _snapshots(total: SnapshotSum) -> str:
    if not total.slots:
        return "none"
    versions = (
        f"{total.oldest}" if total.oldest == total.newest else f"{total.oldest}-{total.newest}"
    )
    return f"{counted(total.slots, 'slot')}, version {versions}, {total.bytes:,} bytes"


def _draw_step(step: StepOverview) -> RenderableType:
    known = facts()
    known.add_row("key", _schema(step.keys) or "none: one entry for all rows")
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


def _sum(total: FileSum) -> str:
    if not total.files:
        return "none"
    return f"{counted(total.files, 'file')}, {total.bytes:,} bytes"


def _when(item: StateEntry | Change) -> str:
    """The epoch of a change; an upper bound for runs and snapshots, which merge many epochs."""
    return f"{item.epoch}" if item.kind == "delta" else f"<= {item.epoch}"


def _change_text(change: Change, name: str) -> Text:
    """A column's value, or its added and removed parts."""
    if name in change.same:
        return Text("as before", "dim")
    value = Text(shown(change.state[name]))
    if name not in change.gone:
        return value
    text = Text.assemble(("added ", "dim"), value)
    gone = change.gone[name]
    if gone:
        text.append(" removed ", "dim").append(
            f"the first {gone}" if name.endswith(".__list") else shown(gone)
        )
    return text


def _schema(columns: dict[str, str]) -> Text:
    return Text(", ".join(f"{name} {type}" for name, type in columns.items()))


def _own(name: str) -> bool:
    """Whether a column is Penstock's own bookkeeping, not user state."""
    return name.rsplit(".", 1)[-1].startswith("__") and not name.endswith(_COLLECTIONS)


def _title(name: str) -> str:
    """A column's name as users know it: list and map state have one column each.

    >>> _title("pages.__map"), _title("seen.n")
    ('pages', 'seen.n')
    """
    return name.rsplit(".", 1)[0] if name.endswith(_COLLECTIONS) else name


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

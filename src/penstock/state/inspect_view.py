"""What `penstock state` prints: tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.state.inspect import Entries, History, Overview, StepOverview
from penstock.state.key_text import plain, shown


def as_json(found: Overview | Entries | History) -> str:
    """All of it, with nothing left out or shortened."""
    return json.dumps(plain(asdict(found)), indent=2, ensure_ascii=False)


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
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in first.key:
        table.add_column(Text(name), style="cyan", overflow="fold")
    for name in columns:
        table.add_column(Text(name), overflow="fold")
    for name in ("slot", "host", "epoch"):
        table.add_column(name, style="dim")
    for entry in found.entries:
        values = [*entry.key.values(), *(entry.state[name] for name in columns)]
        table.add_row(*_texts(values), str(entry.slot), Text(entry.host), str(entry.epoch))
    count = f"{len(found.entries):,} of {found.total:,} entries"
    return Group(table, Text(f"{found.step} at epoch {found.epoch}: {count}", "dim"))


def draw_history(found: History) -> RenderableType:
    entry = found.entry
    facts = _facts()
    for name, value in entry.key.items():
        facts.add_row(Text(name), Text(shown(value), "cyan"))
    for name, value in entry.state.items():
        facts.add_row(Text(name), Text(shown(value)))
    facts.add_row("slot", Text.assemble(f"{entry.slot}, owned by ", entry.host))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("epoch", "delta", *(n for n in entry.state if not _own(n))):
        table.add_column(Text(title), overflow="fold")
    for change in found.changes:
        values = [v for n, v in change.state.items() if not _own(n)]
        told = _texts(values) if change.present else [Text("removed", "dim")]
        table.add_row(str(change.epoch), Text(change.file, "dim"), *told)
    head = Text.assemble((found.step, "bold"), f" at epoch {found.epoch}")
    came = Text("\nevery delta that tells of it, oldest first; the last one counts", "dim")
    return Group(head, facts, came, table)


def _draw_step(step: StepOverview) -> RenderableType:
    facts = _facts()
    facts.add_row("key", _schema(step.keys) or "none: one entry for everything")
    facts.add_row("state", _schema(step.state))
    facts.add_row("entries", f"{step.entries:,}")
    facts.add_row("deltas", f"{step.deltas:,} files, {step.bytes:,} bytes")
    hosts = ", ".join(f"{host} ({slots})" for host, slots in step.hosts.items())
    facts.add_row("slots", f"{step.slots}" + (f": {hosts}" if hosts else ""))
    if step.watermark_ms is not None:
        facts.add_row("watermark", _moment(step.watermark_ms))
    return Group(Text(f"\n{step.id}", "bold"), facts)


def _facts() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _schema(columns: dict[str, str]) -> Text:
    return Text(", ".join(f"{name} {type}" for name, type in columns.items()))


def _texts(values: Iterable[object]) -> list[Text]:
    return [Text(shown(value)) for value in values]


def _own(name: str) -> bool:
    """A column of Penstock's own bookkeeping, not of anybody's state."""
    return name.rsplit(".", 1)[-1].startswith("__")


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

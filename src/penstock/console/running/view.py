"""What `penstock ctl` prints: tables for people, JSON for programs."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from penstock import codec
from penstock.console.terminal import (
    counted,
    facts,
    health,
    listing,
    milliseconds_text,
    money_text,
    numbers,
    offload_text,
    promise,
)
from penstock.model import SLA
from penstock.plan.placement import stored_placements
from penstock.plan.slots import slots_to_text

_STYLES = {"running": "green", "starting": "yellow", "failed": "red"}


def as_json(answer: dict[str, Any]) -> str:
    return codec.text(answer, indent=2)


def draw_status(answer: dict[str, Any]) -> RenderableType:
    """A glance at a query, from what `RunningQuery.status` gives."""
    status, progress, control = answer["status"], answer["progress"], answer.get("control")
    parts: list[RenderableType] = [draw_head(status)]
    if status["message"] != status["state"]:
        parts.append(Text(status["message"], "yellow"))
    if spent := money_text(status.get("money")):
        parts.append(Text.assemble(("spent  ", "dim"), spent))
    parts += [Text(), draw_hosts(answer)]
    if control is not None:
        parts += [Text(), draw_control(control)]
        parts += [Text(), hot_keys] if (hot_keys := draw_hot_keys(control)) else []
    if progress is not None:
        parts += [Text(f"\nstate that moved in epoch {progress['epoch']}", "bold")]
        parts += [_migration(progress["migration"])]
    return Group(*parts)


def draw_control(control: dict[str, Any]) -> RenderableType:
    """What control keeps to, from what `RunningQuery.steer` gives, and how each step fares."""
    known = facts()
    known.add_row("SLA", promise(sla_of(control)))
    known.add_row("policy", draw_policy(control))
    if functions := draw_functions(control):
        known.add_row("functions", functions)
    table = listing(
        Column("step", style="cyan", overflow="fold"),
        "health",
        *numbers("hosts", "at least", "at most", "alert", "margin", "share of the bound"),
        Column("under way", style="yellow", overflow="fold"),
    )
    for name, step in control["steps"].items():
        table.add_row(
            Text(name),
            health(step["health"]),
            f"{len(step['hosts']):,}" if step["hosts"] else "-",
            f"{step['at_least']:,}",
            f"{step['at_most']:,}",
            milliseconds_text(step["alert_ms"]),
            f"{step['margin']:.0%}",
            f"{step['share']:.0%}",
            Text(_under_way(step)),
        )
    return Group(known, Text(), table)


def _under_way(step: dict[str, Any]) -> str:
    told = (step["treating"], offload_text(step.get("offload")))
    return "; ".join(one for one in told if one)


def draw_functions(control: dict[str, Any]) -> Text | None:
    """The functions of a query, and what was used of them; None if it has none."""
    found = control.get("functions")
    if found is None:
        return None
    used, limit = found["used"], f"at most {found['at_most']:,}"
    text = Text.assemble((found["state"], _STYLES.get(found["state"], "")), f", {limit}")
    text.append(f"; {counted(used['invocations'], 'invocation')}, {used['seconds']:,.1f} s")
    if used["failed"] or used["throttled"]:
        text.append(f"; {used['failed']:,} failed, {used['throttled']:,} refused", "yellow")
    if found["trouble"]:
        text.append(f"; {found['trouble']}", "red")
    for step, why in found["left_whole"].items():
        text.append(f"; not for {step}: {why}", "dim")
    return text


def draw_policy(control: dict[str, Any]) -> Text:
    dry = ("  dry run: it only tells", "yellow") if control["dry_run"] else ""
    return Text.assemble(control["policy"], dry)


def draw_hot_keys(control: dict[str, Any]) -> RenderableType | None:
    """The keys that alone are too much for a host, under a title; None if there are none."""
    columns = Column(style="cyan", no_wrap=True), Column(overflow="fold")
    table = Table(*columns, box=None, show_header=False, pad_edge=False)
    for name, step in control["steps"].items():
        for hot in step["hot_keys"]:
            what = f" in slot {hot['slot']}, {hot['rate']:,.0f} records/s: {hot['text']}"
            table.add_row(Text(name), Text.assemble((hot["key"], "bold red"), what))
    return Group(Text("hot keys", "bold"), table) if table.row_count else None


def sla_of(control: dict[str, Any]) -> SLA:
    return SLA(control["sla"]["latency_ms"], control["sla"]["window_ms"])


def draw_head(status: dict[str, Any]) -> Text:
    """The query in one line: its state, epoch and migration, and whether slots are in place."""
    epoch = "no epoch yet" if status["epoch"] is None else f"epoch {status['epoch']}"
    pending = status["pending_slots"]
    waiting = (f"{counted(pending, 'slot')} pending", "yellow") if pending else ("all in place", "")
    return Text.assemble(
        (status["state"], f"bold {_STYLES.get(status['state'], '')}".strip()),
        f"  {epoch}  migration {status['migration']}  ",
        waiting,
    )


def draw_hosts(answer: dict[str, Any]) -> Table:
    """A row for each host that is up, owns slots or did something in the newest epoch; and for each courier
    of a live flow that is up."""
    pids = answer["status"]["hosts"]
    newest = {h["host"]: h for h in answer["progress"]["hosts"]} if answer["progress"] else {}
    placements = [p for told in answer["placements"].values() for p in stored_placements(told)]
    table = listing(
        Column("host", style="cyan", overflow="fold"),
        *numbers("pid"),
        "slots",
        *numbers("entries", "MB", "rows"),
        Column("to move here", style="yellow", overflow="fold"),
    )
    named = {host for p in placements for host in (p.host, p.home)}
    for host in sorted({*named, *pids, *newest}, key=_by_number):
        owned = [slot for p in placements if p.host == host for slot in p.slots]
        coming = [slot for p in placements if p.home == host != p.host for slot in p.slots]
        seen = newest.get(host)
        table.add_row(
            Text(host),
            str(pids.get(host, "down")),
            slots_to_text(owned) or "none",
            f"{seen['entries']:,}" if seen else "-",
            f"{seen['state_bytes'] / 1e6:,.1f}" if seen else "-",
            f"{seen['rows']:,}" if seen else "-",
            slots_to_text(coming),
        )
    for courier, pid in sorted(answer["status"].get("couriers", {}).items()):
        table.add_row(Text(courier), str(pid), "-", "-", "-", "-", "")
    return table


def _migration(moved: dict[str, Any]) -> Table:
    known = facts()
    for one in moved["handovers"]:
        told = f"{slots_to_text(one['slots'])}: {one['source'] or 'the store'} to {one['target']}"
        known.add_row("changed hands", Text(f"{told} ({one['why']})"))
    mb = moved["fetched_bytes"] / 1e6
    known.add_row("fetched", f"{counted(moved['fetched_keys'], 'key')}, {mb:,.1f} MB")
    known.add_row("round trips", f"{moved['fetches']:,}")
    known.add_row("rows waited", f"{moved['wait_ms']:,.0f} ms, over all channels")
    known.add_row("partial slots", f"{moved['partial_slots']:,}")
    known.add_row("left behind", f"{counted(moved['left_behind'], 'key')} that nobody asked for")
    known.add_row("evicted", f"{counted(moved['evicted'], 'key')}, for lack of memory")
    return known


def _by_number(host: str) -> tuple[str, int, str]:
    """Sorts a step's hosts by number.

    >>> sorted(["sum/10", "sum/9"], key=_by_number)
    ['sum/9', 'sum/10']
    """
    step, _, number = host.rpartition("/")
    return step, int(number) if number.isdigit() else 0, host

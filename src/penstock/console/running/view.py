"""The output of `penstock ctl`: tables for people, JSON for programs."""

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
from penstock.driver.epoch_times import EpochTimes
from penstock.model import SLA
from penstock.plan.placement import stored_placements
from penstock.plan.slots import slots_to_text

_WORST = 3
"""Slots that are shown of each step and bound."""
_STYLES = {"running": "green", "starting": "yellow", "failed": "red"}


def as_json(answer: dict[str, Any]) -> str:
    return codec.text(answer, indent=2)


def draw_status(answer: dict[str, Any]) -> RenderableType:
    """An overview of a query, drawn from the reply of `RunningQuery.status`."""
    status, progress, control = answer["status"], answer["progress"], answer.get("control")
    parts: list[RenderableType] = [draw_head(status)]
    if status["message"] != status["state"]:
        parts.append(Text(status["message"], "yellow"))
    if spent := money_text(status.get("money")):
        parts.append(Text.assemble(("spent  ", "dim"), spent))
    if success := draw_success(status):
        parts.append(Text.assemble(("SLA kept  ", "dim"), success))
    if worst := draw_worst_slots(answer):
        parts.append(Text.assemble(("worst slots  ", "dim"), worst))
    parts += [Text(), draw_hosts(answer)]
    if control is not None:
        parts += [Text(), draw_control(control)]
        parts += [Text(), hot_keys] if (hot_keys := draw_hot_keys(control)) else []
    if times := draw_times(answer):
        parts += [Text(), times]
    if progress is not None:
        parts += [Text(f"\nstate that moved in epoch {progress['epoch']}", "bold")]
        parts += [_migration(progress["migration"])]
    return Group(*parts)


def draw_success(status: dict[str, Any]) -> str:
    """Shares of the SLA's windows that were kept, by kind of bound; empty if nothing is known.

    >>> draw_success({"success": {"average": {"minute": 1.0, "hour": 0.985, "run": 0.9912}}})
    'average 100.0 % of the last minute, 98.5 % of the last hour, 99.1 % in all'
    """
    return "; ".join(
        f"{kind} {100 * rates['minute']:.1f} % of the last minute, "
        f"{100 * (rates['hour'] or 0.0):.1f} % of the last hour, {100 * rates['run']:.1f} % in all"
        for kind, rates in status.get("success", {}).items()
        if rates["minute"] is not None
    )


def draw_worst_slots(answer: dict[str, Any]) -> str:
    """The slots of each step that kept a bound least in the last hour; empty if all slots always kept it.

    >>> rates = [{"hour": 1.0}, {"hour": 0.5}, {"hour": 0.985}, {"hour": None}]
    >>> draw_worst_slots({"slot_success": {"clicks: p99": rates}})
    'clicks: p99, last hour: 50.0 % in slot 1, 98.5 % in slot 2'
    """
    texts = []
    for kind, slots in answer.get("slot_success", {}).items():
        known = [(r["hour"], slot) for slot, r in enumerate(slots) if r["hour"] is not None]
        worst = sorted(one for one in known if one[0] < 1)[:_WORST]
        shown = [f"{100 * kept:.1f} % in slot {slot}" for kept, slot in worst]
        if shown:
            texts.append(f"{kind}, last hour: {', '.join(shown)}")
    return "; ".join(texts)


def draw_control(control: dict[str, Any]) -> RenderableType:
    """The control settings, and the health of each step, drawn from the reply of `RunningQuery.steer`."""
    settings = facts()
    settings.add_row("SLA", promise(sla_of(control)))
    settings.add_row("policy", draw_policy(control))
    if functions := draw_functions(control):
        settings.add_row("functions", functions)
    table = listing(
        Column("step", style="cyan", overflow="fold"),
        "health",
        *numbers("hosts", "at least", "at most", "alert", "margin", "share of the bound"),
        Column("in progress", style="yellow", overflow="fold"),
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
            Text(_in_progress(step)),
        )
    return Group(settings, Text(), table)


def _in_progress(step: dict[str, Any]) -> str:
    texts = (step["treating"], offload_text(step.get("offload")))
    return "; ".join(text for text in texts if text)


def draw_functions(control: dict[str, Any]) -> Text | None:
    """The state and the usage of a query's functions; None if it has none."""
    functions = control.get("functions")
    if functions is None:
        return None
    used, state = functions["used"], functions["state"]
    text = Text.assemble((state, _STYLES.get(state, "")), f", at most {functions['at_most']:,}")
    text.append(f"; {counted(used['invocations'], 'invocation')}, {used['seconds']:,.1f} s")
    if used["failed"] or used["throttled"]:
        text.append(f"; {used['failed']:,} failed, {used['throttled']:,} refused", "yellow")
    if functions["trouble"]:
        text.append(f"; {functions['trouble']}", "red")
    for step, why in functions["left_whole"].items():
        text.append(f"; not for {step}: {why}", "dim")
    return text


def draw_times(answer: dict[str, Any]) -> RenderableType | None:
    """Where the time of the newest epochs went; None before the first epoch with rows."""
    found = answer.get("times")
    if found is None:
        return None
    times = codec.from_plain(found, EpochTimes)
    table = facts()
    if answer["status"].get("couriers"):  # rows of a live flow do not wait for epochs
        table.add_row("a row", milliseconds_text(times.latency_ms))
        table.add_row("a checkpoint", f"every {milliseconds_text(times.interval_ms)}")
    else:
        waited, inside = milliseconds_text(times.waited_ms), times.read_ms + times.answer_ms
        total = milliseconds_text(times.latency_ms)
        table.add_row(
            "a row",
            f"{total}: {waited} before its epoch began, {milliseconds_text(inside)} in it",
        )
        parts = (
            (times.read_ms, "reading"),
            (times.answer_ms, "hosts and sink"),
            (times.seal_ms, "seal"),
            (times.between_ms, "until the next"),
        )
        shown = ", ".join(f"{milliseconds_text(ms)} {what}" for ms, what in parts)
        table.add_row("an epoch", f"every {milliseconds_text(times.interval_ms)}: {shown}")
    for work in times.works:
        table.add_row(
            "slowest host",
            Text(
                f"{work.host}: works {work.longest_ms:,.0f} ms on {work.records:,.0f} records; "
                f"the mean of {work.step} is {work.mean_ms:,.0f} ms"
            ),
        )
    table.add_row(
        "state fetched", f"rows waited {times.fetch_ms:,.0f} ms for it, over all channels"
    )
    table.add_row("input", f"{counted(round(times.rows), 'row')}; backlog {answer['backlog']:,}")
    title = f"where the time goes (means of the newest {counted(times.epochs, 'epoch')})"
    return Group(Text(title, "bold"), table)


def draw_policy(control: dict[str, Any]) -> Text:
    dry = (
        ("  dry run: decisions are shown, not carried out", "yellow") if control["dry_run"] else ""
    )
    return Text.assemble(control["policy"], dry)


def draw_hot_keys(control: dict[str, Any]) -> RenderableType | None:
    """A table of keys whose load alone exceeds a host; None if there are none."""
    columns = Column(style="cyan", no_wrap=True), Column(overflow="fold")
    table = Table(*columns, box=None, show_header=False, pad_edge=False)
    for name, step in control["steps"].items():
        for hot in step["hot_keys"]:
            detail = f" in slot {hot['slot']}, {hot['rate']:,.0f} records/s: {hot['text']}"
            table.add_row(Text(name), Text.assemble((hot["key"], "bold red"), detail))
    return Group(Text("hot keys", "bold"), table) if table.row_count else None


def sla_of(control: dict[str, Any]) -> SLA:
    return codec.from_plain(control["sla"], SLA)


def draw_head(status: dict[str, Any]) -> Text:
    """The query in one line: its state, epoch and migration, and the number of slots still to move."""
    epoch = "no epoch yet" if status["epoch"] is None else f"epoch {status['epoch']}"
    pending = status["pending_slots"]
    waiting = (
        (f"{counted(pending, 'slot')} pending", "yellow") if pending else ("no slots pending", "")
    )
    return Text.assemble(
        (status["state"], f"bold {_STYLES.get(status['state'], '')}".strip()),
        f"  {epoch}  migration {status['migration']}  ",
        waiting,
    )


def draw_hosts(answer: dict[str, Any]) -> Table:
    """A table of hosts and live couriers.

    A host is listed if it is up, owns slots or worked in the newest epoch; a courier if it is up.
    """
    pids = answer["status"]["hosts"]
    newest = {h["host"]: h for h in answer["progress"]["hosts"]} if answer["progress"] else {}
    placements = [p for stored in answer["placements"].values() for p in stored_placements(stored)]
    table = listing(
        Column("host", style="cyan", overflow="fold"),
        *numbers("pid"),
        "slots",
        *numbers("entries", "MB", "rows", "workers"),
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
            f"{seen.get('workers', 1):,}" if seen else "-",
            slots_to_text(coming),
        )
    for courier, pid in sorted(answer["status"].get("couriers", {}).items()):
        table.add_row(Text(courier), str(pid), "-", "-", "-", "-", "-", "")
    return table


def _migration(moved: dict[str, Any]) -> Table:
    table = facts()
    for move in moved["handovers"]:
        path = (
            f"{slots_to_text(move['slots'])}: {move['source'] or 'the store'} to {move['target']}"
        )
        table.add_row("slots moved", Text(f"{path} ({move['why']})"))
    mb = moved["fetched_bytes"] / 1e6
    table.add_row("fetched", f"{counted(moved['fetched_keys'], 'key')}, {mb:,.1f} MB")
    table.add_row("round trips", f"{moved['fetches']:,}")
    table.add_row("rows waited", f"{moved['wait_ms']:,.0f} ms in total, over all channels")
    table.add_row("partial slots", f"{moved['partial_slots']:,}")
    table.add_row("left behind", f"{counted(moved['left_behind'], 'key')}, not requested yet")
    table.add_row("evicted", f"{counted(moved['evicted'], 'key')}, for lack of memory")
    return table


def _by_number(host: str) -> tuple[str, int, str]:
    """Sort key that orders a step's hosts by number.

    >>> sorted(["sum/10", "sum/9"], key=_by_number)
    ['sum/9', 'sum/10']
    """
    step, _, number = host.rpartition("/")
    return step, int(number) if number.isdigit() else 0, host

"""The page of `penstock ctl watch`: draws a running query, or describes it in one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from penstock.console.history import LatencyHistory
from penstock.console.running.view import (
    draw_functions,
    draw_head,
    draw_hosts,
    draw_hot_keys,
    draw_policy,
    draw_success,
    draw_times,
    draw_worst_slots,
    sla_of,
)
from penstock.console.terminal import (
    HEALTH,
    bar,
    counted,
    health,
    latency_gauge,
    milliseconds_text,
    money_text,
    numbers,
    offload_text,
    page,
    percentiles,
)
from penstock.control.journal.entry import Entry
from penstock.model import SLA

_WIDTH = 104
_LOAD_WIDTH = 16
_MOST_HOSTS = 16
"""Hosts shown per step at most: the least healthy first, then the busiest."""
_IDLE_S = 3.0
"""Seconds without a new epoch after which the page says so."""
_ILL = {"severe": 2, "moderate": 1}
_EVENTS = {"host lost": "red", "failed": "red", "hot key": "red", "refused": "yellow"}


@dataclass(frozen=True)
class Look:
    """A running query at one moment."""

    answer: dict[str, Any]
    """The reply of `RunningQuery.status`."""
    entries: tuple[Entry, ...]
    """Newest entries of its journal, oldest first."""
    history: LatencyHistory
    idle_s: float
    """Seconds since a new epoch was last seen."""
    trouble: str = ""
    """Reason why this is not up to date: the query does not answer. Empty if it does."""

    @property
    def control(self) -> dict[str, Any] | None:
        """The report of the query's control loop; None if autoscaling is off."""
        report: dict[str, Any] | None = self.answer.get("control")
        return report


def draw(title: str, look: Look, width: int) -> RenderableType:
    """The whole page, for a terminal of this width."""
    control = look.control
    parts: list[RenderableType] = [_head(look)]
    if look.trouble:
        parts.append(Text(look.trouble, "bold red"))
    parts += [Text(), _latency(look.history, None if control is None else sla_of(control)), Text()]
    if control is None:
        off = Text("Autoscaling is off. Turn it on with .elastic().", "dim")
        parts += [draw_hosts(look.answer), Text(), off]
    else:
        for name, step in control["steps"].items():
            parts += [_step_head(name, step), _hosts(step["hosts"]), Text()]
        if functions := draw_functions(control):
            parts += [Text.assemble(("functions  ", "bold"), functions), Text()]
        parts += [hot_keys, Text()] if (hot_keys := draw_hot_keys(control)) else []
        parts.append(_journal(look.entries))
    if times := draw_times(look.answer):
        parts += [Text(), times]
    return page(parts, title, min(width, _WIDTH), padding=(0, 2))


def line(look: Look) -> str:
    """A summary of the page in one line of text."""
    newest, control = look.history.newest, look.control
    epoch = look.answer["status"]["epoch"]
    texts = [look.trouble or look.answer["status"]["state"]]
    texts.append("no epoch yet" if epoch is None else f"epoch {epoch:,}")
    if newest is not None:
        bound = "" if control is None else f" of {sla_of(control).latency_ms:,}"
        texts.append(f"latency {newest.average_ms:,.0f}{bound} ms")
    if control is not None:
        texts += [_step_text(name, step) for name, step in control["steps"].items()]
    if spent := money_text(look.answer["status"].get("money")):
        texts.append(spent)
    return "; ".join(texts)


def _step_text(name: str, step: dict[str, Any]) -> str:
    hosts, keys = len(step["hosts"]), [hot["key"] for hot in step["hot_keys"]]
    texts = [f"{name} {step['health'] or 'not examined yet'}"]
    if hosts:
        texts[0] += f" on {counted(hosts, 'host')}"
    if step["treating"]:
        texts.append(step["treating"])
    if carried := offload_text(step.get("offload")):
        texts.append(carried)
    if keys:
        texts.append(f"hot keys: {' '.join(keys)}")
    return ", ".join(texts)


def _head(look: Look) -> RenderableType:
    head = draw_head(look.answer["status"])
    if look.idle_s >= _IDLE_S:
        head.append(f"  no new epoch for {look.idle_s:,.0f} s", "yellow")
    if spent := money_text(look.answer["status"].get("money")):
        head.append(f"\nspent {spent}", "dim")
    if success := draw_success(look.answer["status"]):
        head.append(f"\nSLA kept: {success}", "dim")
    if worst := draw_worst_slots(look.answer):
        head.append(f"\nworst slots: {worst}", "dim")
    if look.control is None:
        return head
    columns = Column(ratio=1), Column(justify="right")
    grid = Table.grid(*columns, expand=True, padding=(0, 2, 0, 0))
    grid.add_row(head, Text.assemble(("policy ", "dim"), draw_policy(look.control)))
    return grid


def _latency(history: LatencyHistory, sla: SLA | None) -> RenderableType:
    newest = history.newest
    if newest is None:
        return Text("no rows yet", "dim")
    span = f"in epoch {newest.epoch:,}"
    if sla is None:
        return Text.assemble(
            ("latency  ", "dim"), percentiles(newest.latency), (f"  {span}", "dim")
        )
    return latency_gauge(
        newest.latency, span, newest.average_ms, history.bars_ms, history.worst_ms, sla
    )


def _step_head(name: str, step: dict[str, Any]) -> Text:
    text = Text.assemble((name, "bold cyan"), "  ", health(step["health"]))
    allowed = f"  {step['at_least']:,} to {step['at_most']:,} hosts"
    alert = f", alert {milliseconds_text(step['alert_ms'])}, margin {step['margin']:.0%}"
    share = "" if step["share"] == 1 else f", {step['share']:.0%} of the bound"
    text.append(allowed + alert + share, "dim")
    if step["treating"]:
        text.append(f"\nin progress: {step['treating']}", "yellow")
    if carried := offload_text(step.get("offload")):
        text.append(f"\n{carried}", "yellow")
    return text


def _hosts(hosts: list[dict[str, Any]]) -> RenderableType:
    if not hosts:
        return Text("not examined yet", "dim")
    worst = sorted(hosts, key=lambda host: (_ILL.get(host["health"], 0), _load(host) or 0.0))
    shown = {host["host"] for host in worst[-_MOST_HOSTS:]}
    figures = numbers("", "arrivals", "slots", "latency", "settles at")
    columns = Column("host", overflow="fold"), Column("health"), Column("load"), *figures
    table = Table(*columns, box=None, expand=True, pad_edge=False, header_style="dim")
    for host in hosts:
        if host["host"] not in shown:
            continue
        load = _load(host)
        table.add_row(
            Text(host["host"]),
            health(host["health"]),
            bar(load or 0.0, HEALTH.get(host["health"], "dim"), _LOAD_WIDTH),
            "-" if load is None else f"{load:.0%}",
            "-" if host["rate"] is None else f"{host['rate']:,.0f}/s",
            f"{host['slots']:,}",
            milliseconds_text(host["latency_ms"]),
            _settles_at(host),
        )
    more = len(hosts) - len(shown)
    return Group(table, Text(f"and {more:,} more, no less healthy", "dim")) if more else table


def _load(host: dict[str, Any]) -> float | None:
    """Arrival rate divided by service rate; None until both are known."""
    rate, service_rate = host["rate"], host["service_rate"]
    return rate / service_rate if rate is not None and service_rate else None


def _settles_at(host: dict[str, Any]) -> Text:
    """The latency that a host converges to if nothing changes; "never" if it cannot keep up."""
    if host["projected_ms"] is None and host["service_rate"] is not None:
        return Text("never", "red")
    return Text(milliseconds_text(host["projected_ms"]))


def _journal(entries: tuple[Entry, ...]) -> RenderableType:
    if not entries:
        return Text("no decisions yet", "dim")
    fixed = [Column(style=style, no_wrap=True) for style in ("dim", "cyan", "")]
    text = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    table = Table(*fixed, text, box=None, expand=True, show_header=False, pad_edge=False)
    for entry in entries:
        event = Text(entry.event, _EVENTS.get(entry.event, ""))
        table.add_row(entry.when, Text(entry.step), event, Text(entry.text))
    return Group(Text("decisions", "bold"), table)

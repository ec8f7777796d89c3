"""Journal entries: an event of a step, its time, and the figures behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

Event = Literal[
    "decided",  # a policy evaluated the step: its health, the figures, the treatments and the reasons
    "refused",  # something wanted is not done, and why
    "began",  # the data plane has begun treatments
    "done",  # the treatments are in force
    "failed",  # the treatments were given up
    "outcome",  # the latency before and after the treatments, one window later
    "host lost",
    "host leaves",  # its executor is being decommissioned; another host takes its place
    "setting",  # the SLA, the policy or a limit was changed
    "hot key",
    "split",  # a slot that is too hot for any host is split, or a split one is whole again
    "helped",  # other hosts have applied rows of the epoch, for the slots' owners
    "workers",  # hosts use more or fewer worker threads, as their load asks for
    "couriers",  # a live flow has more or fewer couriers, or they read other partitions
    "offload",  # burst workers carry more or less, or hosts should take over
]

_CLOCK_MS = 1e11
"""Threshold: times from here on are milliseconds since 1970, smaller ones since the start of a run."""
_TIME, _EPOCH, _STEP, _EVENT = 12, 12, 12, 9
"""Widths of a line's columns in characters. A longer name pushes the rest to the right."""


@dataclass(frozen=True)
class Entry:
    """An event of one step. `facts` holds JSON values only.

    >>> entry = Entry(61_250.0, 7, "sum", "began", "scale out: slots 0-3 from sum/0 to new/1")
    >>> entry.line()
    '     61.250s  epoch 7       sum           began      scale out: slots 0-3 from sum/0 to new/1'
    """

    time_ms: float
    epoch: int | None
    step: str
    event: Event | str
    """Kind of event. Other releases may have other kinds."""
    text: str
    """One or more sentences, on one line."""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def when(self) -> str:
        """The time of day in UTC, or seconds since the start of a run.

        >>> Entry(1_750_000_000_250.0, None, "sum", "done", "").when
        '15:06:40.250'
        """
        if self.time_ms < _CLOCK_MS:
            return f"{self.time_ms / 1000:.3f}s"
        moment = datetime.fromtimestamp(self.time_ms / 1000, UTC)
        return moment.isoformat(timespec="milliseconds")[11:23]

    def line(self) -> str:
        """The entry as one line of text, in columns."""
        epoch = "" if self.epoch is None else f"epoch {self.epoch}"
        return (
            f"{self.when:>{_TIME}}  {epoch:<{_EPOCH}}  {self.step:<{_STEP}}  "
            f"{self.event:<{_EVENT}}  {self.text}"
        ).rstrip()

    def lines(self) -> list[str]:
        """The entry as `line`, followed by one line for each host of a decision."""
        hosts = self.facts.get("hosts", [])
        wide = max((len(host["host"]) for host in hosts), default=0)
        indent = " " * (_TIME + 2)
        below = [f"{indent}{host['host']:<{wide}}  {_figures(host)}" for host in hosts]
        if left_out := self.facts.get("hosts_left_out", 0):
            below.append(f"{indent}and {left_out:,} more with less load")
        return [self.line(), *below]


@dataclass(frozen=True)
class At:
    """The step and the time of an entry."""

    step: str
    time_ms: float
    epoch: int | None = None

    def entry(self, event: Event, text: str, facts: dict[str, Any]) -> Entry:
        """An entry of this step and time."""
        return Entry(self.time_ms, self.epoch, self.step, event, text, facts)


def _figures(host: dict[str, Any]) -> str:
    """Text for one host of a decision. `host` has the fields of `HostHealth`; None is unknown or infinite."""
    service, projected = host["service_rate"], host["projected_ms"]
    unknown = "cannot keep up" if service is not None else "is not known"
    return (
        f"{host['health']:<8}  {host['slots']:>5,} slots  arrivals {_or_dash(host['rate'])}/s  "
        f"service {_or_dash(service)}/s  latency {_or_dash(host['latency_ms'])} ms  "
        + (f"would settle at {projected:,.0f} ms" if projected is not None else unknown)
    )


def _or_dash(figure: float | None) -> str:
    return f"{'-' if figure is None else f'{figure:,.0f}':>7}"

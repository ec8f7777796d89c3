"""One entry of the journal: what happened to a step, when, and the figures behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

Event = Literal[
    "decided",  # a policy looked at the step: its health, the figures, what it wants done and why
    "refused",  # what was decided is not being done, and why
    "began",  # treatments were handed to the data plane
    "done",  # they are in force
    "failed",  # they were given up
    "outcome",  # a window later: what they brought
    "host lost",
    "host leaves",  # its executor is being decommissioned; another one takes its place
    "setting",  # the SLA, the policy or a limit was changed
    "hot key",
    "couriers",  # a live flow has more or fewer couriers, or they read other partitions
    "offload",  # what burst workers carry has changed, or it is time for hosts
]

_CLOCK_MS = 1e11
"""Times from here on are milliseconds since 1970; smaller ones count from the start of a run."""
_TIME, _EPOCH, _STEP, _EVENT = 12, 12, 12, 9
"""Columns of a line; a longer name pushes the rest to the right."""


@dataclass(frozen=True)
class Entry:
    """Something worth telling about one step. `facts` holds JSON values only.

    >>> entry = Entry(61_250.0, 7, "sum", "began", "scale out: slots 0-3 from sum/0 to new/1")
    >>> entry.line()
    '     61.250s  epoch 7       sum           began      scale out: slots 0-3 from sum/0 to new/1'
    """

    time_ms: float
    epoch: int | None
    step: str
    event: Event | str
    """Another release may tell of other events."""
    text: str
    """A sentence or several, on one line."""
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
        """One line for people, in columns."""
        epoch = "" if self.epoch is None else f"epoch {self.epoch}"
        return (
            f"{self.when:>{_TIME}}  {epoch:<{_EPOCH}}  {self.step:<{_STEP}}  "
            f"{self.event:<{_EVENT}}  {self.text}"
        ).rstrip()

    def lines(self) -> list[str]:
        """`line`, and below it the hosts that were judged, one each, where the entry has them."""
        hosts = self.facts.get("hosts", [])
        wide = max((len(host["host"]) for host in hosts), default=0)
        indent = " " * (_TIME + 2)
        below = [f"{indent}{host['host']:<{wide}}  {_figures(host)}" for host in hosts]
        if left_out := self.facts.get("hosts_left_out", 0):
            below.append(f"{indent}and {left_out:,} more with less load")
        return [self.line(), *below]


@dataclass(frozen=True)
class At:
    """The step, and the moment, that an entry is of."""

    step: str
    time_ms: float
    epoch: int | None = None

    def entry(self, event: Event, text: str, facts: dict[str, Any]) -> Entry:
        """What happened there and then."""
        return Entry(self.time_ms, self.epoch, self.step, event, text, facts)


def _figures(host: dict[str, Any]) -> str:
    """One host of a decision, as `HostHealth` told it; None for what is unknown or without end."""
    service, projected = host["service_rate"], host["projected_ms"]
    unknown = "cannot keep up" if service is not None else "is not known"
    return (
        f"{host['health']:<8}  {host['slots']:>5,} slots  arrivals {_or_dash(host['rate'])}/s  "
        f"service {_or_dash(service)}/s  latency {_or_dash(host['latency_ms'])} ms  "
        + (f"would settle at {projected:,.0f} ms" if projected is not None else unknown)
    )


def _or_dash(figure: float | None) -> str:
    return f"{'-' if figure is None else f'{figure:,.0f}':>7}"

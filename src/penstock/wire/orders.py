"""Arguments of the actions of hosts, live couriers and the registry: names, types and bounds.

A message is checked against these types before it is processed. Other arguments are not checked.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from msgspec import Meta

Number = Annotated[int, Meta(ge=-1, le=2**53)]
"""An epoch, a version, a run or a count; -1 means "before the first"."""
Name = Annotated[str, Meta(max_length=1_000)]
Tag = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._]{1,100}$")]
"""A part of a file's name."""


class Assign(TypedDict):
    assignment: dict[str, Any]
    wait: bool


class Seal(TypedDict):
    epoch: Number
    run: Number
    partitions: Number
    wait: NotRequired[bool]
    """Whether to wait until all channels have closed."""


class Rollback(TypedDict):
    version: Number
    run: Number


class Help(TypedDict):
    epoch: Number
    run: Number
    locations: list[Name]
    """Locations of the hosts that help."""


class Join(TypedDict):
    run: Number
    couriers: Annotated[int, Meta(ge=1, le=10_000)]
    time_ms: NotRequired[int]
    """Earliest time of day of the run, in milliseconds since 1970."""
    watermark_ms: NotRequired[int | None]
    """Watermark that the step's hosts have reached, in milliseconds since 1970."""


class Compact(TypedDict):
    order: dict[str, Any]


class OfCompaction(TypedDict):
    tag: Tag


class Register(TypedDict):
    host: Name
    incarnation: Name
    location: Name
    pid: Number


class Refuse(TypedDict):
    error: str


class Heartbeat(TypedDict):
    host: Name
    incarnation: Name
    open: NotRequired[list[tuple[Number, Number, Number]]]
    """(epoch, run, task) of each courier that has an open channel."""
    cpu: NotRequired[float]
    """CPU load of the host's process since its last heartbeat; 1 if all its cores were busy."""


class CountedOn(TypedDict):
    locations: list[Name]
    epoch: NotRequired[Number]
    run: NotRequired[Number]
    task: NotRequired[Number]


class CourierReport(TypedDict):
    epoch: Number
    run: Number
    partition: Number
    seen: dict[str, Any]


class SetAside(TypedDict):
    epoch: Number
    run: Number
    partition: Number
    aside: dict[str, Any]


class Trouble(TypedDict):
    epoch: Number
    run: Number
    error: str


class Begin(TypedDict):
    order: dict[str, Any]
    """Fields of a `wire.live.LiveOrder`."""


class EpochDurable(TypedDict):
    run: Number
    epoch: Number


class TellMessage(TypedDict):
    run: Number
    message: dict[str, Any]
    """Fields of a `wire.live.Message`."""


class TellGuides(TypedDict):
    run: Number
    guides: dict[str, Any]
    """Fields of a `wire.live.Guides`."""


class HaltRun(TypedDict):
    run: Number


class StreamTrouble(TypedDict):
    run: Number
    courier: Number
    error: str


class CourierCounted(TypedDict):
    """The fields of `wire.live.CourierCounts`."""

    run: Number
    courier: Number
    steps: list[dict[str, Any]]


class CourierPassed(TypedDict):
    """The fields of `wire.live.EpochPassed`."""

    run: Number
    epoch: Number
    courier: Number
    positions: dict[str, dict[str, Any]]
    seen: dict[str, Any]

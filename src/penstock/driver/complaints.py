"""Complaints of couriers about hosts that still send heartbeats to the driver: pure."""

from __future__ import annotations

from typing import NamedTuple

_REMEMBERED_EPOCHS = 10
"""Number of epochs after which a complaint is forgotten."""
_AVOIDED_EPOCHS = 50
"""Number of epochs for which a host gets no slots on a machine where couriers could not reach it, if other
hosts can own them: its next process there may have the same bad link. The number doubles each time."""
_AVOIDED_MOST = 64 * _AVOIDED_EPOCHS
"""Upper limit of that number."""


class Complaint(NamedTuple):
    """A report that a courier could not reach a host, or that its connection to it broke."""

    host: str
    place: str
    """Address of the host's machine."""
    incarnation: str
    epoch: int
    run: int


class _GivenUp(NamedTuple):
    epoch: int
    avoided: int
    """Number of epochs, from `epoch` on, in which the host gets no slots there."""


class Complaints:
    """Decides which hosts to give up.

    After one complaint the epoch is just run again, since links break now and then. If a second run
    complains of the same process, that host is given up and restarted. On another machine it gets slots at
    once.

    >>> complaints = Complaints()
    >>> complaints.judge([Complaint("sum/1", "10.0.0.7", "a", 41, 0)])
    []
    >>> complaints.judge([Complaint("sum/1", "10.0.0.7", "a", 41, 1)])
    ['sum/1']
    >>> complaints.avoids("sum/1", "10.0.0.7", 41), complaints.avoids("sum/1", "10.0.0.7", 91)
    (True, False)
    >>> complaints.avoids("sum/1", "10.0.0.8", 41)
    False
    """

    def __init__(self) -> None:
        self._kept: frozenset[Complaint] = frozenset()
        self._given_up: dict[tuple[str, str], _GivenUp] = {}

    def judge(self, complaints: list[Complaint]) -> list[str]:
        """Take in the complaints of a run that has ended. Returns the hosts to give up."""
        newest = max((complaint.epoch for complaint in complaints), default=0)
        kept = {c for c in self._kept if c.epoch > newest - _REMEMBERED_EPOCHS}
        self._kept = frozenset(kept | set(complaints))
        runs: dict[tuple[str, str], int] = {}
        for c in self._kept:
            runs[c.host, c.incarnation] = runs.get((c.host, c.incarnation), 0) + 1
        lost = {(c.host, c.place) for c in complaints if runs[c.host, c.incarnation] > 1}
        for host, place in lost:
            before = self._given_up.get((host, place))
            avoided = _AVOIDED_EPOCHS if before is None else min(2 * before.avoided, _AVOIDED_MOST)
            self._given_up[host, place] = _GivenUp(newest, avoided)
        return sorted(host for host, _ in lost)

    def avoids(self, host: str, place: str, epoch: int) -> bool:
        """Whether a host on this machine should get no slots in this epoch, if other hosts can own them."""
        given_up = self._given_up.get((host, place))
        return given_up is not None and epoch - given_up.epoch < given_up.avoided

    def places(self, host: str) -> frozenset[str]:
        """Machines on which a host was given up because of complaints."""
        return frozenset(place for name, place in self._given_up if name == host)

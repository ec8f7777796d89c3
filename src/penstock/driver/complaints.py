"""Complaints of couriers about hosts that the driver still hears: pure."""

from __future__ import annotations

from typing import NamedTuple

_REMEMBERED_EPOCHS = 10
"""Epochs after which a complaint is forgotten."""
_AVOIDED_EPOCHS = 50
"""Epochs for which a host is not given slots where it stands, if others can have them, after it was given up
there for complaints: its next incarnation may stand behind the same bad link. Twice as many each time."""
_AVOIDED_MOST = 64 * _AVOIDED_EPOCHS


class Complaint(NamedTuple):
    """A courier of one run could not reach one incarnation of a host, or their conversation broke."""

    host: str
    place: str
    """The address of its machine."""
    incarnation: str
    epoch: int
    run: int


class _GivenUp(NamedTuple):
    epoch: int
    avoided: int
    """Epochs from then on."""


class Complaints:
    """Decides whom to give up.

    One complaint means another run, since links break now and then. When a second run complains of
    the same incarnation, the next run must do without that host. It is started again; on another machine it
    is trusted at once.

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
        """The hosts to give up, now that a run has ended with these complaints."""
        newest = max((one.epoch for one in complaints), default=0)
        kept = {one for one in self._kept if one.epoch > newest - _REMEMBERED_EPOCHS}
        self._kept = frozenset(kept | set(complaints))
        runs: dict[tuple[str, str], int] = {}
        for one in self._kept:
            runs[one.host, one.incarnation] = runs.get((one.host, one.incarnation), 0) + 1
        lost = {(c.host, c.place) for c in complaints if runs[c.host, c.incarnation] > 1}
        for host, place in lost:
            before = self._given_up.get((host, place))
            avoided = _AVOIDED_EPOCHS if before is None else min(2 * before.avoided, _AVOIDED_MOST)
            self._given_up[host, place] = _GivenUp(newest, avoided)
        return sorted(host for host, _ in lost)

    def avoids(self, host: str, place: str, epoch: int) -> bool:
        """Whether a host should have no slots in this epoch where it stands, as long as there are others."""
        found = self._given_up.get((host, place))
        return found is not None and epoch - found.epoch < found.avoided

    def places(self, host: str) -> frozenset[str]:
        """Where a host was given up for complaints."""
        return frozenset(place for name, place in self._given_up if name == host)

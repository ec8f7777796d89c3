"""Complaints of couriers about hosts that the driver still hears: pure."""

from __future__ import annotations

from typing import NamedTuple

_REMEMBERED_EPOCHS = 10
"""Epochs after which a complaint is forgotten."""
_AVOIDED_EPOCHS = 50
"""Epochs for which a host is not given slots, if others can have them, after it was given up for
complaints: its next incarnation may stand behind the same bad link."""


class Complaint(NamedTuple):
    """A courier of one run could not reach one incarnation of a host, or their conversation broke."""

    host: str
    incarnation: str
    epoch: int
    run: int


class Complaints:
    """Decides whom to give up.

    One complaint means another run, since links break now and then. When a second run complains of
    the same incarnation, the next run must do without that host.

    >>> complaints = Complaints()
    >>> complaints.judge([Complaint("sum/1", "a", 41, 0), Complaint("sum/1", "a", 41, 0)])
    []
    >>> complaints.judge([Complaint("sum/1", "a", 41, 1), Complaint("sum/0", "b", 41, 1)])
    ['sum/1']
    >>> complaints.avoided(41), complaints.avoided(91)
    ({'sum/1'}, set())
    """

    def __init__(self) -> None:
        self._kept: frozenset[Complaint] = frozenset()
        self._given_up: dict[str, int] = {}

    def judge(self, complaints: list[Complaint]) -> list[str]:
        """The hosts to give up, now that a run has ended with these complaints."""
        newest = max((one.epoch for one in complaints), default=0)
        kept = {one for one in self._kept if one.epoch > newest - _REMEMBERED_EPOCHS}
        self._kept = frozenset(kept | set(complaints))
        runs: dict[tuple[str, str], int] = {}
        for one in self._kept:
            runs[one.host, one.incarnation] = runs.get((one.host, one.incarnation), 0) + 1
        named = {(one.host, one.incarnation) for one in complaints}
        lost = sorted(host for host, incarnation in named if runs[host, incarnation] > 1)
        self._given_up |= dict.fromkeys(lost, newest)
        return lost

    def avoided(self, epoch: int) -> set[str]:
        """Hosts that should have no slots in this epoch, as long as there are others."""
        return {h for h, since in self._given_up.items() if epoch - since < _AVOIDED_EPOCHS}

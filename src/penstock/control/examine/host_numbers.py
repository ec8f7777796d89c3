"""Small numbers for hosts, so that what is known of them can be kept in arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.control.examine.vitals import Ints
from penstock.model import HostId


class HostNumbers:
    """Gives each host a number that stays its own until it is forgotten; then another may get it.

    >>> numbers = HostNumbers()
    >>> numbers.of([HostId("sum/0"), HostId("sum/1")]).tolist()
    [0, 1, -1]
    >>> numbers.forget(HostId("sum/0")), numbers.of([HostId("sum/2")]).tolist(), numbers.many
    (0, [0, -1], 2)
    """

    def __init__(self) -> None:
        self.many = 0
        """All numbers are below this one."""
        self._numbers: dict[HostId, int] = {}
        self._free: list[int] = []
        self._asked: tuple[HostId, ...] = ()
        self._answer: Ints = np.array([-1])

    def of(self, hosts: Sequence[HostId]) -> Ints:
        """The numbers of these hosts; and then -1, so that owner -1 has number -1."""
        asked = tuple(hosts)
        if asked != self._asked:
            self._answer = np.array([*map(self._number, asked), -1])
            self._asked = asked
        return self._answer

    def forget(self, host: HostId) -> int | None:
        """The number that the host had, if it had one."""
        number = self._numbers.pop(host, None)
        if number is not None:
            self._free.append(number)
            self._asked, self._answer = (), np.array([-1])
        return number

    def _number(self, host: HostId) -> int:
        if host not in self._numbers:
            if not self._free:
                self._free.append(self.many)
                self.many += 1
            self._numbers[host] = self._free.pop()
        return self._numbers[host]

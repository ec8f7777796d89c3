"""Errors of couriers that the driver keeps."""

from __future__ import annotations

from itertools import permutations

import pytest

from penstock.driver.registry import Registry
from penstock.errors import ChangedInputError, HostLostError, PenstockError, StaleRunError, to_wire
from penstock.wire.access import Access
from penstock.wire.addresses import LOOPBACK


@pytest.mark.parametrize("kind", [HostLostError, ChangedInputError])
def test_why_a_run_was_given_up_stays_known(kind: type[PenstockError]) -> None:
    """The run's jobs are then cancelled, and other couriers report that their inputs broke off."""
    cancelled = list[tuple[int, int]]()
    registry = Registry(
        LOOPBACK, Access("token"), lambda epoch, run: cancelled.append((epoch, run))
    )
    try:
        why, stale = kind("this is why"), StaleRunError("the run is over")
        cut = PenstockError("ArrowInvalid: the stream ended")
        for number, order in enumerate(permutations([why, stale, cut])):
            registry.expect(7, number, lambda seen: None)
            after = order[order.index(why) :]
            for error in after:
                registry.actions["trouble"]({"epoch": 7, "run": number, "error": to_wire(error)})
            assert str(registry.trouble()) == str(why)
        assert cancelled == [(7, number) for number in range(6)]
        # Errors of a run that is over are dropped.
        registry.actions["trouble"]({"epoch": 7, "run": 0, "error": to_wire(cut)})
        assert str(registry.trouble()) == str(why)

    finally:
        registry.shutdown()

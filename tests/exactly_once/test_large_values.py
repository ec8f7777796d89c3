"""Large values that do not change are left out of deltas, and are there again after any fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import penstock as ps
from penstock.faults import Fault
from penstock.state.variables.handle import StateHandle
from penstock.testing import FlowTester, assert_survives, source
from penstock.testing.flow_tester import SETTINGS

OFTEN = replace(SETTINGS, compact_epochs=1)


class Album(ps.KeyedProcessor):
    """Counts the rows of a key, and keeps its last picture."""

    output_schema = "k long, n long, picture string"

    def init(self, handle: StateHandle) -> None:
        self._count = handle.get_value_state("count", "n long")
        self._photo = handle.get_value_state("photo", "picture string")

    def handle_input_rows(
        self, key: tuple[Any, ...], rows: Iterator[Any], timers: Any
    ) -> list[tuple[int, int, str]]:
        (count,), (picture,) = self._count.get() or (0,), self._photo.get() or ("",)
        for row in rows:
            count += 1
            if row.picture:
                picture = row.picture * 1_000
                self._photo.update((picture,))
        self._count.update((count,))
        return [(key[0], count, picture)]


FLOW = ps.flow(source("k long, picture string")).key_by("k", slots=8).process(Album(), name="album")
FIRST = [(k, chr(97 + k)) for k in range(20)]


def counts(*keys: int) -> list[tuple[int, str]]:
    return [(k, "") for k in keys]


def test_no_fault_loses_a_value_that_was_left_out() -> None:
    epochs = [FIRST, counts(*range(20)), [(3, "z"), *counts(4, 5)], counts(*range(20))]
    points = ("host.applied", "host.install", "host.compact", "driver.layout")
    crashes = [Fault(point, "kill") for point in points]
    fired = assert_survives(FLOW, epochs, crashes, settings=OFTEN)
    assert {"host.applied", "host.compact"} <= set(fired)


def test_values_are_whole_after_compactions_a_kill_and_a_restart() -> None:
    with FlowTester(FLOW, settings=OFTEN) as tester:
        tester.run(FIRST)
        for _ in range(4):
            tester.run(counts(*range(20)))
        tester.run([(3, "z")])
        tester.run(counts(3))
        tester.kill(tester.hosts["album"][0])
        out = tester.run(counts(*range(20)))
        assert all(len(row["picture"]) == 1_000 for row in out.to_pylist())
        tester.restart()
        rows = tester.run(counts(*range(20))).to_pylist()
        assert {row["k"]: (row["n"], row["picture"][0]) for row in rows} == {
            k: (9, "z") if k == 3 else (7, chr(97 + k)) for k in range(20)
        }

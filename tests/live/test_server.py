"""A courier's server and its task: started, messaged, halted, restarted and stopped by a driver."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from penstock import codec
from penstock.errors import HostLostError, ProtocolError, StaleRunError
from penstock.live.task import run_courier
from penstock.plan.steps import FlowPlan, SourcePlan
from penstock.wire.flight import Endpoint
from penstock.wire.live import CheckpointMessage, Guides, Message, StepGuide
from tests.live.pretence import ACCESS, Scene, TapSource, taps, wait_for
from tests.live.test_loop import CALM, ROWS, TOTALS, rows_of, totals_of


@contextmanager
def courier() -> Iterator[tuple[TapSource, Scene, Endpoint]]:
    """A task with its hosts, in a thread, and a connection to its server."""
    source = TapSource(taps("p0"), ROWS)
    scene = Scene(FlowPlan((SourcePlan(ROWS),), (TOTALS,)), [source], {"sum": 2}, CALM)
    switching_s = sys.getswitchinterval()
    task = threading.Thread(target=run_courier, args=[scene.task])
    task.start()
    wait_for(lambda: scene.driver.registered)
    line = Endpoint(scene.driver.registered[0]["location"], ACCESS)
    try:
        yield source, scene, line
    finally:
        with suppress(HostLostError):
            line.call("stop", 5_000)
        task.join(20)
        line.close()
        for server in (*scene.hosts.values(), scene.driver):
            server.shutdown()
        sys.setswitchinterval(switching_s)
        assert not task.is_alive()


def call(line: Endpoint, action: str, **facts: Any) -> Any:
    return line.call(action, 5_000, **codec.to_plain(facts))


def test_a_driver_begins_halts_and_begins_again_from_other_positions() -> None:
    with courier() as (source, scene, line):
        assert scene.driver.registered[0]["host"] == "courier/0"
        call(line, "begin", order=scene.order)
        source.taps["p0"].give(rows_of((1, 5)), rows_of((2, 7)))
        wait_for(lambda: totals_of(scene) == {1: 5, 2: 7})
        saved = Message(checkpoint=CheckpointMessage(0, 5, 4))
        call(line, "message", run=1, message=saved)
        passed = wait_for(lambda: scene.driver.passed)[0]
        assert passed.positions == {0: {"p0": 2}}
        call(line, "halt", run=1)
        with pytest.raises(StaleRunError):
            call(line, "message", run=1, message=saved)
        with pytest.raises(StaleRunError):
            call(line, "begin", order=scene.order)
        order = replace(scene.order, run=2, epoch=6, positions={0: {"p0": 1}})
        call(line, "begin", order=order)
        # the second row comes again; the fake hosts have not rolled back
        wait_for(lambda: totals_of(scene) == {1: 5, 2: 14})
        assert {ids.epoch for ids, _ in scene.shelf.written} == {5, 6}
        assert [header.run for header in scene.hosts["sum/0"].headers] == [1, 2]
    assert not scene.driver.troubles


def test_invalid_messages_are_refused() -> None:
    with courier() as (_, scene, line):
        with pytest.raises(ProtocolError):
            call(line, "begin", order="now")
        with pytest.raises(ProtocolError):
            call(line, "begin", order={"run": 1})
        with pytest.raises(ProtocolError):
            call(line, "halt", run="all")
        assert not scene.driver.troubles


def test_a_guide_applies_to_its_own_run() -> None:
    with courier() as (source, scene, line):
        call(line, "begin", order=scene.order)
        guides = Guides((StepGuide("sum", two_stage=True),))
        with pytest.raises(StaleRunError):
            call(line, "guide", run=2, guides=guides)
        with pytest.raises(ProtocolError):
            call(line, "guide", run=1, guides={"steps": 5})
        call(line, "guide", run=1, guides=guides)
        source.taps["p0"].give(rows_of((1, 5), (1, 6)))
        wait_for(lambda: totals_of(scene) == {1: 11})
        assert sum(len(host.rows) for host in scene.hosts.values()) == 1

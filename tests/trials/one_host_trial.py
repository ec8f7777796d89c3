"""Trials of flows on one host: all steps of a flow in one task, on one worker or on several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle

from penstock.plan.steps import FlowPlan
from penstock.settings import Settings
from tests.trials.cluster import SETTINGS, MiniCluster
from tests.trials.event_ledger import CASES
from tests.trials.event_trial import MOSTLY_IN_TIME, EventTrial
from tests.trials.trial import FLOWS, Request, Trial

ALONE = replace(SETTINGS, host_cores=1)
THREE = replace(SETTINGS, host_cores=3)
SMALL = replace(THREE, host_parts=5, chunk_rows=7)
SINGLE = replace(THREE, chunk_rows=1)
ALONE_SMALL = replace(ALONE, chunk_rows=7)
ALONE_PARTED = replace(ALONE, host_parts=3, chunk_rows=1)
SHARED = replace(THREE, host_parts=5, chunk_rows=5)
WORKERS = {
    "alone": ALONE,
    "alone-small": ALONE_SMALL,
    "alone-parted": ALONE_PARTED,
    "three": THREE,
    "small": SMALL,
    "single": SINGLE,
}
"""Settings that share the work of a host in different ways, which must make no difference."""

LINEAR = [name for name, case in CASES.items() if case.flow.linear]
"""Event-time flows that one host can run."""


class OneHost(MiniCluster):
    """A cluster with one host for all steps. Each driver uses the next of the settings."""

    def __init__(self, flow: FlowPlan, store: str, settings: tuple[Settings, ...]) -> None:
        self._turns = cycle(settings)
        super().__init__(flow, store, hosts=1, settings=settings[0])

    def start_driver(self) -> None:
        self.settings = next(self._turns)
        self.hosts = dict.fromkeys(self.hosts, 1)
        super().start_driver()


class OneHostTrial(Trial):
    """A trial of a processing-time flow on one host: nothing can move, but everything can die."""

    def ask(self, request: Request) -> None:
        if request.kind in ("kill", "leave", "restart"):
            super().ask(request)


class OneHostEventTrial(EventTrial):
    """A trial of an event-time flow on one host."""

    def ask(self, request: Request) -> None:
        if request.kind in ("kill", "leave", "restart"):
            super().ask(request)


@contextmanager
def one_host_trial(
    name: str, store: str, *settings: Settings, behind: tuple[int, ...] = MOSTLY_IN_TIME
) -> Iterator[Trial]:
    """A trial of one of `tests.trials.trial.FLOWS` or `tests.trials.event_ledger.CASES` on one host."""
    plain = name in FLOWS
    flow = replace(FLOWS[name][0] if plain else CASES[name].flow, one_host=True)
    on = OneHost(flow, store, settings=settings or (SMALL,))
    try:
        yield (
            OneHostTrial(name, on, FLOWS[name][1]())
            if plain
            else OneHostEventTrial(name, on, behind)
        )
    finally:
        on.close()

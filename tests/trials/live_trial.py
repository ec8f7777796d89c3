"""A trial of a live flow: rows, moves, deaths and silence in any order, then a check of the whole output."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.control.crew_size import CrewPlan
from penstock.errors import SettingError
from penstock.plan.migration import Migration
from tests.live.pretence import Tap, TapSource, taps
from tests.offload.in_process import Helped
from tests.trials.cluster import stored_entries
from tests.trials.ledger import SLOTS
from tests.trials.live_cluster import LiveCluster, live_cluster
from tests.trials.live_subjects import SUBJECTS, Subject, sources_of
from tests.trials.plain_rows import Row, of_schema
from tests.trials.splits import halve, scatter

START_MS = 1_000_000
"""Start of event time, in milliseconds."""
PARTITIONS = 3


class SubjectTrial:
    """A live flow, and all rows that arrived for it."""

    def __init__(
        self,
        subject: Subject,
        cluster: LiveCluster,
        given: list[dict[str, Tap]],
        seed: int,
        helped: Helped | None = None,
    ) -> None:
        self.subject, self.cluster, self._taps = subject, cluster, given
        self.pick, self.rows, self.now_ms = random.Random(seed), list[Row](), START_MS
        self._helped = helped

    # Rows

    def give(self, batches: int = 4, rows: int = 10, gap_ms: int = 400) -> None:
        """Let batches of rows arrive; event time advances by `gap_ms` with each."""
        for _ in range(batches):
            self.now_ms += gap_ms
            self.guide()
            made = self.subject.rows(self.pick, rows, self.now_ms)
            self.rows += made
            for source, of_source in sources_of(self.subject.flow, made).items():
                for tap, some in self._dealt(source, of_source):
                    tap.give(of_schema(some, self.subject.flow.sources[source].schema))

    def _dealt(self, source: int, rows: list[Row]) -> Iterator[tuple[Tap, list[Row]]]:
        """Rows with the partition by which each arrives: any, or always the same for a value."""
        partitions = list(self._taps[source].values())
        if self.subject.pinned is None:
            self.pick.shuffle(partitions)
            for place, tap in enumerate(partitions):
                if rows[place :: len(partitions)]:
                    yield tap, rows[place :: len(partitions)]
            return
        for row in rows:
            place = sum(map(ord, row[self.subject.pinned]))
            yield partitions[place % len(partitions)], [row]

    def polled(self) -> None:
        """Wait until couriers have read all rows."""
        everything = [tap for of in self._taps for tap in of.values()]
        self.cluster.until(
            lambda: all(tap.read == len(tap.batches) for tap in everything), "all is read"
        )

    def guide(self) -> None:
        """Give burst workers, if there are any, other shares of rows from now on."""
        if self._helped is not None:
            with suppress(RuntimeError):  # The driver is dead.
                on = self.cluster
                on.crew.guide(on.runner._run, self._helped.guides(self.pick))

    # Requests of a user

    def resplit(self, what: str, number: int, slots: tuple[int, ...], to: int = 0) -> None:
        """Request that slots are split, that their parts move, or that they are whole again."""
        on, steps = self.cluster, self.cluster.flow.keyed
        step = steps[number % len(steps)].id
        with suppress(SettingError, RuntimeError):
            if not on.relocation.begun:
                return  # a new driver knows no slots yet
            if what == "split":
                halve(on.relocation, step, slots)
            elif what == "scatter":
                scatter(on.relocation, step, to)
            else:
                on.relocation.unite(step, slots)

    def move(
        self, number: int = 0, slots: tuple[int, ...] = tuple(range(SLOTS)), to: int = 0
    ) -> None:
        """Request a move of a step's slots to one of its hosts."""
        steps = self.cluster.flow.keyed
        step = steps[number % len(steps)].id
        with suppress(
            SettingError, RuntimeError
        ):  # the driver is dead, or a new one with other hosts
            hosts = self.cluster.relocation.hosts(step)
            self.cluster.relocation.move(step, slots, hosts[to % len(hosts)])

    def scale(self, number: int, hosts: int) -> None:
        steps = self.cluster.flow.keyed
        with suppress(SettingError, RuntimeError):
            self.cluster.relocation.scale(steps[number % len(steps)].id, hosts)

    def have_couriers(self, couriers: int) -> None:
        """Request a number of couriers, with any partitions."""
        sources = enumerate(self.cluster.sources)
        names = [(number, name) for number, source in sources for name in source.partitions()]
        loads = {name: self.pick.random() for name in names}
        self.cluster.scaling.asked.put(CrewPlan(couriers, loads, "the test requested it"))

    def leave(self, number: int) -> None:
        """Begin the planned removal of a host's or courier's machine."""
        on = self.cluster
        hosts, couriers = on.jobs.live, sorted(on.crew.pids())
        if number % 2 and couriers:
            on.courier_jobs.leave(couriers[number // 2 % len(couriers)])
        elif hosts:
            on.jobs.leave(hosts[number // 2 % len(hosts)])

    def migrate_by(self, migration: str) -> None:
        self.cluster.migration = self.cluster.relocation.migration = Migration.parse(migration)

    def moved(self) -> None:
        """Wait until no slot is moving."""
        self.cluster.until(lambda: not self.cluster.relocation.pending, "moved")

    # Checks

    def check(self) -> None:
        """End the input, and compare the output and the stored state with a batch computation."""
        on = self.cluster
        for of in self._taps:
            for tap in of.values():
                tap.give(end=True)
        on.until(lambda: on.outcome is not None, "finished")
        assert on.outcome == "finished", repr(on.outcome)
        assert all(not p.late_rows for p in on.progress), "rows were late that cannot be late"
        assert on.progress[-1].epoch == max(p.epoch for p in on.progress)
        if not on.deaths["driver"]:
            assert sum(p.rows for p in on.progress) == len(self.rows), "rows that were committed"
        self.subject.judge(self.rows, on.sink.all_rows())

    def stored(self, number: int = 0) -> dict[Any, Row]:
        """Each key of a step, with its entry in the newest version of the store."""
        step = self.cluster.flow.keyed[number]
        return stored_entries(self.cluster.store, step, self.cluster.progress[-1].epoch)


@contextmanager
def subject_trial(
    name: str,
    store: Path,
    seed: int = 1,
    partitions: int = PARTITIONS,
    helped: Helped | None = None,
    ordered: bool = False,
    one_host: bool = False,
    **kwargs: Any,
) -> Iterator[SubjectTrial]:
    subject = SUBJECTS[name]
    flow = replace(subject.flow, ordered=ordered or subject.flow.ordered, one_host=one_host)
    subject = replace(subject, flow=flow)
    if one_host:
        kwargs |= {"hosts": 1, "migration": "pause"}
    sources, given = [], []
    for number, plan in enumerate(subject.flow.sources):
        by_name = taps(*(f"s{number}p{n}" for n in range(partitions)))
        given.append(by_name)
        sources.append(TapSource(by_name, plan.schema))
    with live_cluster(subject.flow, sources, str(store), close=True, **kwargs) as cluster:
        yield SubjectTrial(subject, cluster, given, seed, helped)

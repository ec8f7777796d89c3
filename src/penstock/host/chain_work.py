"""Rounds of a live run in a host of all steps: each chunk is a round of every step that it reaches.

The result is the same as if one thread took one chunk after the other. On several cores a step works on one
chunk while the next step works on the chunk before, and parts of a step do not wait for one another.
Time advances step by step: the rows that the first step fires go through all later steps before these fire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.errors import MemoryLimitError
from penstock.host.chain_stages import Rows, UnderWay, chain_of
from penstock.host.chunks import NOBODY, ChannelChunk, Round, Rounded, a_round, joined
from penstock.host.machine import HostMachine
from penstock.host.parted import PartedOperator
from penstock.operators.operator import Answer, EpochTime, Operator
from penstock.plan.steps import FlowPlan
from penstock.runtime.cores import WorkersByLoad
from penstock.runtime.runtime import Runtime
from penstock.runtime.scheduler import Meter
from penstock.settings import Settings


def must_fit(machines: Sequence[HostMachine], limit: int | None) -> None:
    """Raise if the steps' state takes more than `limit` bytes. A chain cannot drop entries: it never fetches
    them again."""
    taken = sum(machine.operator.table.nbytes for machine in machines)
    if limit is not None and taken > limit:
        raise MemoryLimitError(
            f"the state of a flow on one host takes {taken / 2**20:,.1f} MB of the {limit / 2**20:,.0f} MB "
            "that host_memory_mb allows",
            hint="raise Settings.host_memory_mb, or leave on_one_host() out: other hosts keep the rest in "
            "the store",
        )


class ChainWork:
    """A `RoundWork` for all steps of a flow. Due times are named "<number of the step> <column>"."""

    apart = answers_back = True

    def __init__(
        self,
        flow: FlowPlan,
        machines: Sequence[HostMachine],
        settings: Settings,
        memory_limit: int | None = None,
        by_load: WorkersByLoad | None = None,
    ) -> None:
        """`memory_limit` is the most bytes of state of all steps together; None: there is no limit.
        `by_load` chooses the number of workers; None: it is that of the settings."""
        self._machines, self._limit = machines, memory_limit
        self._operators: list[PartedOperator] = []
        for machine in machines:
            assert isinstance(machine.operator, PartedOperator)
            self._operators.append(machine.operator)
        self._under_way = UnderWay(flow.on_error)
        self._chain = chain_of(flow, machines, self._under_way)
        workers = settings.workers if by_load is None else by_load.most
        self._runtime = Runtime(
            self._chain.stages, workers=workers, schedule=settings.schedule, by_load=by_load
        )
        self.overlaps = workers > 1
        self._items: list[Rows] = []
        """Chunks that wait for `drain`, where nothing overlaps."""
        self._rounds: list[Round] = []
        """Round of each chunk, by the chunk's number."""
        self._output: list[Rows] = []
        self.begin()

    def begin(self) -> None:
        """Begin a run: no step has a watermark yet."""
        self._times = [EpochTime(0, 0) for _ in self._operators]
        self._before: Sequence[Meter] = self._runtime.meters
        self._start()

    def _start(self) -> None:
        """Forget all rounds and their output."""
        self._items, self._rounds, self._output = [], [], []
        self._under_way.start(self._times)

    @property
    def due_columns(self) -> tuple[str, ...]:
        each = enumerate(self._operators)
        return tuple(f"{place} {name}" for place, op in each for name in op.due_columns)

    def due(self, time: EpochTime) -> dict[str, int]:
        each = enumerate(self._operators)
        return {
            f"{place} {name}": limit for place, op in each for name, limit in op.due(time).items()
        }

    def least(self, name: str, above: int) -> int | None:
        place, _, column = name.partition(" ")
        return self._operators[int(place)].table.least(column, above)

    def fire(self, time: EpochTime) -> Answer:
        """Advance time in one step after the other."""
        answers = []
        self._times = [replace(time, watermark_ms=t.watermark_ms, final=False) for t in self._times]
        self._start()
        for place, operator in enumerate(self._operators):
            fired = joined(a_round(part, time, _fired) for part in operator.parts)
            self._times[place] = time
            answers.append(self._through(place, fired))
        return joined(answers)

    def _through(self, place: int, fired: Answer) -> Answer:
        """Take the rows that a step has fired through the steps after it."""
        after = self._chain.after[place]
        rows = self._chain.keyed[place].rows(0, fired)
        self._rounds.append(Round(NOBODY, self._times[place]))
        if after == len(self._chain.stages):
            self._output += rows
        elif rows and self.overlaps:
            self._open()
            self._runtime.submit_ahead(after, rows)
        elif rows:
            self._output += self._runtime.run([], {after: rows})
        return joined(rounded.answer for rounded in self.drain())

    def submit(self, chunk: ChannelChunk) -> None:
        assert chunk.round is not None
        if not self._rounds:
            self._times = [chunk.round.time] * len(self._times)
            self._start()
        rows = Rows(len(self._rounds), chunk.batches)
        self._rounds.append(chunk.round)
        if self.overlaps:
            self._open()
            self._runtime.submit(rows)
        else:
            self._items.append(rows)

    def drain(self) -> list[Rounded]:
        if self._items:
            self._output += self._runtime.run(self._items)
        elif self.overlaps and self._rounds:
            self._open()
            self._runtime.drain()
        rounded = [
            Rounded(self._rounds[rows.number], Answer(rows.batches)) for rows in self._output
        ]
        aside, due = self._under_way.aside, dict[str, int]()
        for place, step_due in self._under_way.due:
            for name, least in step_due.items():
                name = f"{place} {name}"
                due[name] = min(least, due.get(name, least))
        if aside or due:
            extra = Answer(dead=aside.dead, late=aside.late, due=due)
            rounded.append(Rounded(Round(NOBODY, self._times[0]), extra))
        self._start()
        must_fit(self._machines, self._limit)
        return rounded

    def abandon(self) -> None:
        """Drop all rounds that are not finished."""
        if self._runtime.is_open:
            self._runtime.stop()
        self._start()

    def spent(self) -> list[tuple[int, float]]:
        """Return each step's records and busy seconds since the last call."""
        before, self._before = self._before, self._runtime.meters
        return self._chain.spent(before, self._before)

    def end(self) -> None:
        """End the workers."""
        self._runtime.close()

    def _open(self) -> None:
        if not self._runtime.is_open:
            self._runtime.open(lambda rows: self._output.append(rows))


def _fired(operator: Operator) -> Answer:
    return operator.fire()

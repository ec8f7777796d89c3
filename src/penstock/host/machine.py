"""The host as a pure state machine: closed channels and orders of the driver in, answers out.

No sockets, no threads, no files: `host.server` is the shell around it. A host moves through

    version v ──open(v+1, run)──► open ──last channel closes──► complete ──seal──► sealed
        ▲                          │                              │                  │
        └──────── rollback ◄───────┴──────────────────────────────┴──────────────────┤
                                                     open(v+2, ·) makes v+1 final ◄──┘

A sealed epoch can still be taken back, because another host may fail while it seals; the opening of
the next epoch is what makes it final. A channel is closed once: whoever closes it again, a retried
task or a second job of the sink, gets the answer that was kept and changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ProtocolError, StaleRunError
from penstock.operators.operator import Answer, EpochTime, Operator
from penstock.state.buffers import fixed_array
from penstock.wire.messages import ChannelHeader


@dataclass(frozen=True)
class HostVitals:
    """What a host tells of itself with a seal."""

    rows: int
    """Rows (or partial states) taken in during the epoch."""
    busy_ms: float
    """Time spent applying channels during the epoch."""
    entries: int
    state_bytes: int


@dataclass(frozen=True)
class _Kept:
    """A closed channel: who closed it, and the answer for whoever closes it again."""

    attempt: int
    answer: Answer


@dataclass
class _Run:
    """One run of one epoch, as far as it has come."""

    epoch: int
    run: int
    partitions: int
    time: EpochTime
    fired: Answer
    kept: dict[int, _Kept] = field(default_factory=dict)
    rows: int = 0
    busy_s: float = 0.0

    @property
    def complete(self) -> bool:
        return len(self.kept) == self.partitions


class HostMachine:
    """State and protocol of one host. Calls must not overlap: the shell holds a lock."""

    def __init__(self, operator: Operator, clock: Callable[[], float] = time.perf_counter) -> None:
        self.operator = operator
        self.version: int | None = None
        """The newest epoch that is final here; -1 before the first, None before `restore`."""
        self._run: _Run | None = None
        self._sealed = False
        self._clock = clock

    def restore(
        self, version: int, tables: Iterable[pa.Table], slots: npt.NDArray[np.int32]
    ) -> None:
        """Start from a version: `tables` are its deltas, oldest first; keep only `slots` of them."""
        if self.version is not None:
            raise ProtocolError(f"this host already holds version {self.version}")
        wanted = fixed_array(slots, pa.int32())
        for table in tables:
            mine = pc.is_in(table.column("__slot"), value_set=wanted)
            self.operator.table.load(table.filter(mine))
        self.operator.rollback()
        self.version = version

    def close_channel(
        self, header: ChannelHeader, kind: str, batches: list[pa.RecordBatch]
    ) -> Answer:
        """Take in a channel whose input is complete, and answer it. `kind` says what it brought."""
        run = self._enter(header)
        kept = run.kept.get(header.partition)
        if kept is not None:
            if kept.attempt == header.attempt:
                raise ProtocolError(
                    f"one task delivered partition {header.partition} of epoch {header.epoch} twice",
                    hint="the sink merges partitions before reading them (coalesce): repartition "
                    "instead, or use foreach_batch",
                )
            return kept.answer
        if self._sealed or not 0 <= header.partition < run.partitions:
            raise StaleRunError(
                f"epoch {header.epoch} has no open channel for partition {header.partition}"
            )
        began = self._clock()
        answer = self.operator.apply(kind, batches)
        if header.partition == 0:
            answer = _joined(run.fired, answer)
        run.kept[header.partition] = _Kept(header.attempt, answer)
        if run.complete:
            answer = _joined(answer, self.operator.close())
            run.kept[header.partition] = _Kept(header.attempt, answer)
        run.rows += sum(batch.num_rows for batch in batches)
        run.busy_s += self._clock() - began
        return answer

    @property
    def complete(self) -> tuple[int, int] | None:
        """(epoch, run) when every channel of it has closed and it is not sealed yet."""
        if self._run is None or not self._run.complete or self._sealed:
            return None
        return self._run.epoch, self._run.run

    def seal(self, epoch: int, run: int, partitions: int) -> tuple[pa.Table, HostVitals]:
        """The delta of a complete epoch. Asking again gives the same; rollback is still possible."""
        if self._run is None and partitions == 0 and self.version == epoch - 1:
            self._run = _Run(epoch, run, 0, EpochTime(epoch, 0), Answer())
        current = self._run
        if current is None or (current.epoch, current.run) != (epoch, run):
            raise StaleRunError(f"epoch {epoch} run {run} is not open here: {self}")
        if not current.complete:
            raise ProtocolError(
                f"epoch {epoch} is not complete: {len(current.kept)} of {current.partitions} "
                "partitions have come"
            )
        self._sealed = True
        table = self.operator.table
        vitals = HostVitals(current.rows, current.busy_s * 1000, len(table), table.nbytes)
        return table.delta(), vitals

    def rollback(self, version: int) -> None:
        """Give up the epoch under way, sealed or not, and stand at `version` again."""
        if self.version != version:
            raise ProtocolError(f"cannot return to version {version}: {self}")
        self.operator.rollback()
        self._run, self._sealed = None, False

    def _enter(self, header: ChannelHeader) -> _Run:
        """The run that a header belongs to, opened if the header is the first to speak of it."""
        run = self._run
        if run is not None and (run.epoch, run.run) == (header.epoch, header.run):
            return run
        if self.version is None:
            raise ProtocolError("this host has not been given its state yet")
        if run is not None and run.epoch == header.epoch:
            if header.run < run.run:
                raise StaleRunError(f"run {header.run} of epoch {header.epoch} was given up")
            self.rollback(self.version)
        elif run is not None and self._sealed and header.epoch == run.epoch + 1:
            self.operator.table.seal()
            self.version, self._run, self._sealed = run.epoch, None, False
        if self._run is not None or header.epoch != self.version + 1:
            raise StaleRunError(f"epoch {header.epoch} cannot open here: {self}")
        fired = self.operator.open(header.time)
        self._run = _Run(header.epoch, header.run, header.partitions, header.time, fired)
        return self._run

    def __str__(self) -> str:
        if self._run is None:
            return f"host at version {self.version}"
        state = "sealed" if self._sealed else f"{len(self._run.kept)}/{self._run.partitions} closed"
        return f"host at version {self.version}, epoch {self._run.epoch}.{self._run.run} {state}"


def _joined(first: Answer, second: Answer) -> Answer:
    return Answer(first.batches + second.batches, first.dead + second.dead)

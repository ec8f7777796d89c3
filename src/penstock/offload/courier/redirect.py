"""Redirects rows of a live courier's chunks to burst workers: sets them aside, makes requests, takes answers.

Rows that are set aside wait for a moment, so that rows of several chunks go together, and for a free burst
worker. An *errand* is one request to a burst worker. It is settled by an answer, or by the courier itself:
when the request fails, or at a deadline after its rows were set aside. So no row is outstanding for longer.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import ProtocolError
from penstock.exchange.step_work import StepWork
from penstock.offload.backends.backend import Invoker, WorkerFailed
from penstock.offload.backends.messages import Request, Requests, cut_evenly
from penstock.offload.courier.health import Health, health_at
from penstock.offload.courier.partials import Made, Maker
from penstock.offload.courier.profile import profiler
from penstock.offload.courier.questions import Call, Outcome, reached
from penstock.offload.courier.router import Router, by_key
from penstock.offload.plan.segments import Segment
from penstock.operators.operator import EpochTime
from penstock.plan.epoch import Offload
from penstock.plan.steps import FlowPlan
from penstock.state.keys.slot_map import SlotMap
from penstock.wire.access import Access
from penstock.wire.report import Counts, Offloaded, Usage

_GATHER_S = 0.25
"""Most seconds for which rows are gathered before they go to burst workers."""
_GATHER_PART, _GATHER_MORE = 1 / 4, 1 / 2
"""Fraction of the deadline for which rows are gathered: the more rows of a key go together, the less its host
has to merge. The second value is for hosts that are behind."""
_ERRAND_S = 0.01
"""Seconds that an errand should take: an invocation costs about 2 ms, however few rows it has."""
_LEAST = 16
"""Least rows of an errand, if rows are split into several."""
_ROW_S = 1e-4
"""Seconds per row of an errand, before any was measured."""
_SMOOTH = 0.2
"""Weight of the newest errand in the smoothed seconds per row."""
_NEVER = math.inf


@dataclass(eq=False)
class Gathered:
    """Rows of some chunks that went to burst workers together."""

    chunks: tuple[int, ...]
    errands: int
    """Number of errands of these rows whose results hosts have not applied."""
    watermark_ms: int | None
    """Watermark in milliseconds that none of these rows is behind, except late ones."""
    until: float
    """Time at which the courier does them itself."""
    counts: Counts
    """Records of each slot that hosts would have got; 0 if slots are not known before answers come."""


@dataclass(eq=False)
class Errand:
    """One request to a burst worker."""

    request: Request
    of: Gathered
    asked_at: float


class Returned(NamedTuple):
    """The outcome of an errand, as reported by its thread."""

    step: str
    errand: Errand
    outcome: Outcome[Made]


class Settled(NamedTuple):
    """Records for hosts, made of the rows of an errand."""

    of: Gathered
    rows: int
    made: Made


class Parted(NamedTuple):
    """A chunk's rows, split into those that stay and those that were set aside."""

    stays: Sequence[list[pa.RecordBatch]] = ()
    """The rows of each input that stay."""
    carried: int = 0
    """Number of rows that were set aside."""
    by_slot: Counts | None = None
    """Number of rows set aside by slot; None if slots are not known."""


class _Aside(NamedTuple):
    """Rows of one chunk that were set aside and not requested yet."""

    chunk: int
    batches: list[pa.RecordBatch]
    by_slot: Counts | None
    time: EpochTime
    at: float
    until: float


@dataclass
class _Facts:
    """Counts for the report of an epoch."""

    rows: int = 0
    records: int = 0
    invocations: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    returned: int = 0
    wait_s: float = 0.0


class Redirect:
    """One live courier's connection to the burst workers of one keyed step. Used by one thread.

    Other threads call `put` with the outcome of an errand, which must then be passed to `returned`. `name` is
    part of the ids of requests, and unique to the run, courier and step.
    """

    def __init__(
        self,
        flow: FlowPlan,
        segment: Segment,
        access: Access,
        name: str,
        courier: int,
        couriers: int,
        put: Callable[[Returned], None],
        slots: SlotMap | None = None,
    ) -> None:
        """`slots` are those of the step in this run; without them, no slot is split."""
        self._flow, self._segment, self._maker = flow, segment, Maker(segment)
        self._slots = slots or SlotMap(self._maker.step.slots)
        self._access = access
        self._name, self._courier, self._couriers, self._put = name, courier, couriers, put
        self._offload: Offload | None = None
        self._invoker: Invoker | None = None
        self._health = Health()
        self._at_once = 0
        """Number of burst workers that this courier may keep busy."""
        self._busy = 0
        """Number of burst workers that have not answered yet, including those of settled errands."""
        self._aside: list[_Aside] = []
        self._errands: dict[str, Errand] = {}
        """Request id -> errand that is not settled."""
        self._number = self._came = 0
        """Number of request groups made so far, and number of rows routed so far."""
        self._row_s = _ROW_S
        self._facts, self._used = _Facts(), Usage()
        self._askers = Askers(segment.id)

    @property
    def kind(self) -> str:
        """Kind of the records for hosts: ROWS or PARTIALS."""
        return self._maker.kind

    @property
    def by_slot(self) -> bool:
        """Whether the slots of rows that are set aside are known."""
        return self._segment.by_slot

    def guide(self, offload: Offload | None, reach: str | None) -> None:
        """Apply a new offload from the next chunk on; None stops offloading."""
        if offload is None or reach is None:
            self._offload = None
            return
        if not self._segment.offloadable:
            raise ProtocolError(
                f"{self._segment.id} cannot use burst workers: {self._segment.reason}"
            )
        _ = self._maker.kind  # computed now, before other threads use it
        self._offload, self._invoker = offload, reached(reach, self._access)
        self._health = health_at(reach)
        self._at_once = offload.at_once(self._courier, self._couriers)
        if self._at_once and offload.reflex is not None:
            most = offload.reflex.of(self._courier, self._couriers).workers
            self._at_once = max(self._at_once, most)

    def part(
        self,
        chunk: int,
        inputs: Sequence[Sequence[pa.RecordBatch]],
        time: EpochTime,
        surplus: float,
        now: float,
    ) -> Parted:
        """Set rows of a chunk aside by the shares in force, but at least the fraction `surplus` of all."""
        offload, stream = self._offload, self._maker.step.plan.all_inputs
        if offload is None or not self._at_once or not (surplus or offload.shares.any()):
            return Parted([list(some) for some in inputs])
        stays: list[list[pa.RecordBatch]] = []
        aside: list[pa.RecordBatch] = []
        carried, by_slot = 0, None
        for input, batches in enumerate(inputs):
            router = Router(self._segment, offload, first=self._came, slots=self._slots)
            router.raise_shares(surplus)
            kept = [router.stays(batch) for batch in batches]
            stays.append([batch for batch in kept if batch.num_rows])
            aside += [stream.pack(input, batch) for batch in router.aside]
            carried, by_slot = carried + router.carried, router.by_slot
            self._came += router.kept + router.carried
        if carried:
            until = now + offload.deadline_ms / 1000
            self._aside.append(_Aside(chunk, aside, by_slot, time, now, until))
            self._facts.rows += carried
        return Parted(stays, carried, by_slot)

    @property
    def outstanding(self) -> bool:
        """Whether any row that was set aside is not settled."""
        return bool(self._aside or self._errands)

    @property
    def watermark_ms(self) -> int | None:
        """Watermark in milliseconds that no outstanding row is behind, except late ones; None if unknown."""
        times = [aside.time.watermark_ms for aside in self._aside[:1]]
        times += [errand.of.watermark_ms for errand in self._errands.values()]
        known = [time for time in times if time is not None]
        return min(known) if len(known) == len(times) else None

    def ask(self, now: float, hurry: bool, behind: bool = False) -> float:
        """Send waiting rows to free burst workers: at once if something waits for them (`hurry`), later if
        hosts are `behind`. Returns the time at which to call again."""
        free = self._at_once - self._busy
        if self._aside and free > 0:
            first = self._aside[0]
            part = _GATHER_MORE if behind else _GATHER_PART
            gathered_at = first.at + min(_GATHER_S, (first.until - first.at) * part)
            if not hurry and now < gathered_at:
                return gathered_at
            count = sum(batch.num_rows for aside in self._aside for batch in aside.batches)
            wanted = min(math.ceil(count / _LEAST), math.ceil(count * self._row_s / _ERRAND_S))
            self._gather(min(free, wanted), now, True)
        waits = [aside.until for aside in self._aside[:1]]
        return min(
            [*waits, *(errand.of.until for errand in self._errands.values())], default=_NEVER
        )

    def returned(self, reply: Returned, work: StepWork) -> Iterator[Settled]:
        """Settle an errand by its answer, or do it with `work` if it failed. An answer to an errand that is
        settled already is ignored."""
        self._busy -= 1
        errand, outcome = reply.errand, reply.outcome
        if self._errands.pop(errand.request.id, None) is None:
            return
        if isinstance(outcome, WorkerFailed):
            yield self._alone(errand, outcome.failure, work)
            return
        made, records = outcome
        took_s = time.monotonic() - errand.asked_at
        self._row_s += _SMOOTH * (took_s / max(errand.request.rows, 1) - self._row_s)
        self._facts.records += records
        yield self._settled(errand, made)
        profiler.run()

    def overdue(self, now: float, work: StepWork) -> Iterator[Settled]:
        """Settle errands that are past their deadline, in the courier."""
        if self._aside and self._aside[0].until <= now:
            self._gather(1, now, False)
        for id in [id for id, errand in self._errands.items() if errand.of.until <= now]:
            errand = self._errands.pop(id)
            if errand.asked_at < now:  # else no burst worker was free, and none was asked
                self._health.missed(errand.asked_at)
            yield self._alone(errand, "timeout", work)

    def report(self) -> tuple[Offloaded | None, Usage]:
        """Counts of offloaded rows, and usage of burst workers, since the last call."""
        facts, self._facts = self._facts, _Facts()
        used = Usage() if self._invoker is None else self._invoker.taken()
        if not facts.rows:
            return None, used
        profiled = profiler.taken(self._segment.id)
        return Offloaded(
            self._segment.id,
            rows=facts.rows,
            records=facts.records,
            invocations=facts.invocations,
            failures=dict(facts.failures),
            returned=facts.returned,
            here_ms=profiled.here_ms,
            workers_ms=profiled.workers_ms,
            wait_ms=round(1000 * facts.wait_s),
        ), used

    def close(self) -> None:
        """End all threads, once burst workers have answered or timed out. Does not wait."""
        self._askers.close()

    def _gather(self, parts: int, now: float, asks: bool) -> None:
        """Make errands of all waiting rows, and send them to burst workers if `asks` is true."""
        assert self._invoker is not None
        aside, self._aside = self._aside, []
        # Late rows are judged by the oldest watermark: hosts get no later one until all rows are settled.
        time, until = aside[0].time, aside[0].until
        name = f"{self._name}.{self._number}"
        self._number += 1
        keys = self._maker.step.plan.key_names
        rows = by_key([batch for chunk in aside for batch in chunk.batches], keys)
        requests = Requests.of(self._flow, self._segment.steps, time, name).cut(
            cut_evenly(rows, parts), self._invoker.request_limit
        )
        chunks = tuple(chunk.chunk for chunk in aside)
        counts = sum(
            (chunk.by_slot for chunk in aside if chunk.by_slot is not None),
            start=np.zeros(self._slots.count, np.int64),
        )
        gathered = Gathered(chunks, len(requests), time.watermark_ms, until, counts)
        for request in requests:
            errand = self._errands[request.id] = Errand(request, gathered, now)
            if asks:
                self._facts.invocations += 1
                self._busy += 1
                self._askers.do(partial(self._ask, self._invoker, self._health, errand))

    def _ask(self, invoker: Invoker, health: Health, errand: Errand) -> None:
        """Make the request. Called in a separate thread."""
        call = Call(invoker, errand.request, errand.of.until, health)
        self._put(Returned(self._segment.id, errand, call.outcome(self._maker.taken)))
        call.profiled(partial(profiler.note, self._flow, self._segment.id))

    def _alone(self, errand: Errand, failure: str, work: StepWork) -> Settled:
        self._facts.failures[failure] += 1
        self._facts.returned += errand.request.rows
        return self._settled(errand, self._maker.alone(errand.request, work))

    def _settled(self, errand: Errand, made: Made) -> Settled:
        self._facts.wait_s = max(self._facts.wait_s, time.monotonic() - errand.asked_at)
        return Settled(errand.of, errand.request.rows, made)


class Askers:
    """Threads that wait for burst workers. A new one starts when all are busy; all are kept until `close`."""

    def __init__(self, name: str) -> None:
        self._name = f"penstock-invoke-{name}"
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle, self._count = 0, 0
        self._lock = threading.Lock()

    def do(self, work: Callable[[], None]) -> None:
        """Run a call at once in an idle thread, or in a new one."""
        with self._lock:
            self._idle -= 1
            begins = self._idle < 0
            if begins:
                self._idle += 1
                self._count += 1
        self._work.put(work)
        if begins:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def close(self) -> None:
        """End idle threads now, and busy ones when they are done."""
        for _ in range(self._count):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            with self._lock:
                self._idle += 1

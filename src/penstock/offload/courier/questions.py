"""A task's requests to the burst workers of a segment: several at a time, until a deadline."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Generic, TypeVar

import pyarrow as pa

from penstock.courier.delivery import Delivery
from penstock.faults import point
from penstock.offload.backends.backend import Invoker, WorkerFailed, invoker_at
from penstock.offload.backends.messages import Request, Requests, WorkerAnswer
from penstock.offload.courier.health import Health, health_at
from penstock.offload.courier.profile import profiler
from penstock.offload.plan.segments import Segment
from penstock.operators.operator import EpochTime, host_records
from penstock.plan.epoch import Offload
from penstock.wire.access import Access
from penstock.wire.report import Offloaded, Seen, Usage

Taken = TypeVar("Taken")
"""The courier's result of an answer."""
Outcome = tuple[Taken, int] | WorkerFailed
"""The result of an answer and its number of records, or the reason why there is none."""
Profile = Callable[[bytes, float], None]
"""Called with an answered request and the CPU milliseconds of its burst worker."""


class Questions:
    """One task's requests to the burst workers of one segment, and their counts for its report."""

    def __init__(
        self, delivery: Delivery, segment: Segment, offload: Offload, time: EpochTime
    ) -> None:
        self.segment, self.offload, self.time = segment, offload, time
        self._delivery = delivery
        self._facts: list[Offloaded] = []
        self._used = Usage()

    @property
    def at_once(self) -> int:
        """Number of burst workers that this courier may keep busy."""
        delivery = self._delivery
        return self.offload.at_once(delivery.task.partition, delivery.plan.partitions)

    @cached_property
    def _where(self) -> dict[str, object]:
        """Facts for fault points."""
        plan, task = self._delivery.plan, self._delivery.task
        return {
            "step": self.segment.id,
            "epoch": plan.epoch,
            "run": plan.run,
            "partition": task.partition,
            "attempt": task.attempt,
        }

    def ask(
        self, parts: Sequence[Sequence[pa.RecordBatch]], take: Callable[[WorkerAnswer], Taken]
    ) -> Invocations[Taken]:
        """Start the requests, with one burst worker for each part of the rows.

        `take` is called with each answer, in any thread.
        """
        point("courier.offload", **self._where)
        name = ".".join(map(str, self._where.values()))
        requests = Requests.of(self._delivery.flow, self.segment.steps, self.time, name)
        invoker = self._invoker
        asked = requests.cut(parts, invoker.request_limit)
        profile = partial(profiler.note, self._delivery.flow, self.segment.id)
        deadline_ms = self.offload.deadline_ms
        reach = self._delivery.plan.reach or ""
        health = health_at(reach)
        return Invocations(invoker, asked, take, len(parts), deadline_ms, health, profile)

    def settled(
        self, invocations: Invocations[Taken], alone: Callable[[Request], Taken]
    ) -> Iterator[tuple[Request, Taken]]:
        """Wait for all requests. Returns each request in order, with its result.

        Requests without an answer are done by `alone`, while burst workers still work on the rest.
        """
        made: dict[int, Taken] = {}
        asked, returned = invocations.asked, 0
        for number, taken in invocations.finished():
            if taken is None:
                returned += asked[number].rows
                taken = alone(asked[number])
            made[number] = taken
        point("courier.offloaded", **self._where)
        profiler.run()
        profiled = profiler.taken(self.segment.id)
        self._facts.append(
            Offloaded(
                self.segment.id,
                rows=sum(request.rows for request in asked),
                records=invocations.records,
                invocations=len(asked),
                failures=dict(invocations.failures),
                returned=returned,
                here_ms=profiled.here_ms,
                workers_ms=profiled.workers_ms,
                wait_ms=invocations.wait_ms,
            )
        )
        return ((request, made[number]) for number, request in enumerate(asked))

    def tell(self, seen: Seen) -> Seen:
        """The task's report, with the counts of these requests added."""
        if not self._facts:
            return seen
        self._used += self._invoker.taken()
        return replace(seen, offloaded=(*seen.offloaded, *self._facts), used=seen.used + self._used)

    @property
    def _invoker(self) -> Invoker:
        reach = self._delivery.plan.reach
        assert reach is not None
        return reached(reach, self._delivery.access)


class Invocations(Generic[Taken]):
    """Sends requests to burst workers, `at_most` at a time, and waits for the answers.

    `take` is called with each answer, in any thread. If it raises an error, the answer counts as failed.
    Answers after the deadline are ignored: the caller has done those rows by then. A thread that still waits
    for a burst worker ends when the invoker times out.
    """

    def __init__(
        self,
        invoker: Invoker,
        asked: Sequence[Request],
        take: Callable[[WorkerAnswer], Taken],
        at_most: int,
        deadline_ms: int,
        health: Health | None = None,
        profile: Profile = lambda body, cpu_ms: None,
    ) -> None:
        """`profile` is called with answered requests and their CPU milliseconds, after `take`."""
        self._health, self._profile = health or Health(), profile
        self.failures: Counter[str] = Counter()
        """Reason -> number of requests without an answer."""
        self.wait_ms = 0
        """Milliseconds from the first request until the last answer or the deadline."""
        self.records = 0
        """Cost of the answers for hosts, in records."""
        self.asked = asked
        self._invoker, self._take = invoker, take
        self._began = time.monotonic()
        self._until = self._began + deadline_ms / 1000
        self._over = False
        self._next = deque(range(len(asked)))
        self._outcomes: queue.SimpleQueue[tuple[int, Outcome[Taken]]] = queue.SimpleQueue()
        for _ in range(min(at_most, len(asked))):
            threading.Thread(target=self._work, name="penstock-invoke", daemon=True).start()

    def finished(self) -> Iterator[tuple[int, Taken | None]]:
        """Yield the number and result of each request as it finishes; None if there is no answer."""
        left = set(range(len(self.asked)))
        while left:
            patience = self._until - time.monotonic()
            try:
                number, outcome = self._outcomes.get(timeout=max(0.0, patience))
            except queue.Empty:
                break
            left.remove(number)
            if not left:
                self._note_time()
            if isinstance(outcome, WorkerFailed):
                self.failures[outcome.failure] += 1
                yield number, None
            else:
                taken, records = outcome
                self.records += records
                yield number, taken
        self._over = True
        if left:
            self._note_time()
            self._health.missed(self._began)
            self.failures["timeout"] += len(left)
        for number in sorted(left):
            yield number, None

    def _note_time(self) -> None:
        self.wait_ms = round((time.monotonic() - self._began) * 1000)

    def _work(self) -> None:
        while not self._over:
            try:
                number = self._next.popleft()
            except IndexError:
                return
            call = Call(self._invoker, self.asked[number], self._until, self._health)
            self._outcomes.put((number, call.outcome(self._take)))
            call.profiled(self._profile)


def reached(reach: str, access: Access) -> Invoker:
    """Connect to burst workers. If that fails, returns an invoker whose calls fail."""
    try:
        return invoker_at(reach, access)
    except Exception as failed:
        # a retried task may reach them, and must split its rows in the same way
        return _Unreachable(failed)


class Call:
    """One request to a burst worker, until a time on the monotonic clock."""

    def __init__(self, invoker: Invoker, request: Request, until: float, health: Health) -> None:
        self._invoker, self._request, self._until = invoker, request, until
        self._health = health
        self._body, self._cpu_ms = b"", 0.0

    def outcome(self, take: Callable[[WorkerAnswer], Taken]) -> Outcome[Taken]:
        """Invoke a burst worker, and wait for its answer. Never raises."""
        began = time.monotonic()
        left_ms = int((self._until - began) * 1000)
        if left_ms < 1:
            return WorkerFailed("no burst worker was free in time", failure="timeout")
        try:
            self._body = self._request.to_bytes()
            if self._health.hung:
                self._health.probe(self._invoker, self._body)
                return WorkerFailed(
                    "burst workers hang, and a probe is under way", failure="timeout"
                )
            body = self._invoker.invoke(self._body, left_ms)
            self._health.answered()
            answer = WorkerAnswer.from_bytes(body, self._request)
            taken = take(answer)
            self._cpu_ms = answer.cpu_ms
            return taken, sum(map(host_records, answer.batches))
        except WorkerFailed as failed:
            if failed.failure == "timeout":
                self._health.missed(began)
            return failed
        except Exception as broken:
            # whatever the error is, the courier can do the rows itself
            return WorkerFailed(f"an invocation failed: {type(broken).__name__}: {broken}")

    def profiled(self, profile: Profile) -> None:
        """Profile an answered request. Never raises: the rows are done already."""
        if self._cpu_ms > 0:
            with suppress(Exception):
                profile(self._body, self._cpu_ms)


class _Unreachable:
    """An invoker for burst workers that a task cannot reach: each call fails. See `Invoker`."""

    request_limit: int | None = None

    def __init__(self, why: Exception) -> None:
        self._why = f"{type(why).__name__}: {why}"

    def invoke(self, request: bytes, timeout_ms: int) -> bytes:
        raise WorkerFailed(f"burst workers cannot be reached: {self._why}")

    def taken(self) -> Usage:
        return Usage()

    def close(self) -> None: ...

"""A chain of operators on several workers, with the output of a serial run.

    feed -> worklist -> workers -> reorder buffer -> worklist -> workers -> ... -> sink
               operator 0                              operator 1

A worker asks the scheduler for an operator, processes its worklist for a time slice, hands the outputs to
the operator's reorder buffer, which fills the next worklist in order, and asks again. No worker waits
for another. A worker that finds nothing to do sleeps until there is work.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from penstock.errors import SettingError
from penstock.runtime.atomics import ATOMICS, Atomics
from penstock.runtime.chain import StageChain
from penstock.runtime.cores import WorkersByLoad
from penstock.runtime.crew import Bell, Crew
from penstock.runtime.operators import ChainOperator
from penstock.runtime.reorder import NonBlocking, Reorder
from penstock.runtime.scheduler import Meter
from penstock.runtime.schedules import Schedule, schedule_named
from penstock.runtime.stages import Halted
from penstock.runtime.worklists import HybridQueue, Worklist

_SLICE_MS = 1.0
"""Time slice of a worker, in milliseconds: long compared with the cost of a decision (some microseconds),
short compared with a latency SLA."""


class Runtime:
    """Runs a chain of operators. Used by one thread at a time.

    Items are passed all at once (`run`), or one by one while workers process earlier items (`open`, `submit`,
    `drain`). `workers` includes the caller of `run`, so with one worker there are no threads. An open
    stream has as many threads as workers. `buffer` is the number of outputs of one operator that may
    wait for their turn, and the number of items that may wait for the first operator. With `by_load`, fewer
    workers may be used, as it chooses between runs, and between drains of a stream. `queue` creates the
    worklists of keyed operators and `reorder` the reorder buffers; tests and benchmarks replace them.
    """

    def __init__(
        self,
        operators: Sequence[ChainOperator],
        *,
        workers: int = 1,
        schedule: str | Schedule = "ct",
        queue: Callable[[int, Atomics], Worklist] = HybridQueue,
        reorder: Callable[[int, Atomics], Reorder] = NonBlocking,
        buffer: int = 1024,
        slice_ms: float = _SLICE_MS,
        clock: Callable[[], float] = time.perf_counter,
        atomics: Atomics = ATOMICS,
        by_load: WorkersByLoad | None = None,
    ) -> None:
        if not operators or workers < 1 or buffer < 1:
            raise SettingError(
                f"the runtime has {len(operators)} operators, {workers} workers and a buffer of {buffer}",
                hint="use at least one of each",
            )
        slice = slice_ms / 1000
        if isinstance(schedule, str):
            schedule = schedule_named(schedule, slice)
        self._workers, self._clock, self._by_load = workers, clock, by_load
        self._began: float | None = None
        """When the work that is under way began; None if there is none."""
        self._records = 0
        """Number of records of earlier work."""
        self._active = atomics.counter(0)
        """Number of threads that may be working."""
        self._bell = Bell()
        """The caller's bell."""
        self._feeding = self.is_open = False
        """Whether the caller has more items (`_feeding`), and whether a stream is open (`is_open`)."""
        self._crew = Crew()
        # Threads have only a weak reference to the runtime: an unused runtime is freed and ends them.
        weakref.finalize(self, self._crew.send_home)
        self._new_chain = partial(
            StageChain, tuple(operators), workers, schedule, queue, reorder, buffer, slice, clock,
            atomics, self._crew,
        )  # fmt: skip
        self._chain = self._new_chain()

    @property
    def meters(self) -> tuple[Meter, ...]:
        """Work done by each operator, since the start or since the last error."""
        return self._chain.scheduler.meters()

    def run(
        self, items: Iterable[Any], ahead: Mapping[int, Sequence[Any]] | None = None
    ) -> list[Any]:
        """Process all items and return all outputs, marks included, in serial order.

        `ahead` maps the position of an operator in the chain to items that it gets before all others.

        The caller is one of the workers. An error in an operator ends the run: nothing new is started, all
        workers return, and the runtime is empty, although operators keep their state. Then the error of the
        earliest item that is known to have failed is raised.
        """
        self._check(is_open=False)
        outputs: list[Any] = []
        self._chain.exit.sink = outputs.append
        self._begin_work()
        self._staff(self._engaged - 1)
        try:
            # Last operators first: the output of an operator must come after the items ahead of it.
            for place, some in sorted((ahead or {}).items(), reverse=True):
                self._chain.feed_ahead(place, some)
            self._run(iter(items))
        except BaseException as error:
            self._chain.fail(error)
        self._raise_failure()
        self._end_work()
        return outputs

    def open(self, sink: Callable[[Any], None]) -> None:
        """Open a stream. All workers are threads. They call `sink` with outputs in serial order, one at a
        time."""
        self._check(is_open=False)
        self._chain.exit.sink = sink
        self.is_open = True
        self._staff(self._engaged)

    def submit(self, item: Any) -> None:
        """Add one item to the stream. Blocks while too many items wait for the first operator. Raises the
        error of an earlier item, which ends the stream."""
        self._check(is_open=True)
        chain = self._chain
        if not chain.has_room():
            self._feeding = True
            self._await(lambda: chain.halt.on or chain.has_room(), watch=True)
            self._feeding = False
        if chain.halt.on:
            self._end()
        if self._began is None:
            self._begin_work()
        chain.feed(item)
        if self._crew.idle:
            self._crew.wake()

    def submit_ahead(self, place: int, items: Sequence[Any]) -> None:
        """Add items directly at a later operator, named by its position, while the stream is empty."""
        self._check(is_open=True)
        if self._began is None:
            self._begin_work()
        self._chain.feed_ahead(place, items)
        if self._crew.idle:
            self._crew.wake()

    def drain(self) -> None:
        """Wait until the outputs of all submitted items have been sent. Raises an error of an item, which
        ends the stream."""
        self._check(is_open=True)
        self._await(lambda: self._chain.halt.on or self._complete(), watch=True)
        if self._chain.halt.on:
            self._end()
        self._end_work()

    def finish(self) -> None:
        """Drain the stream and close it."""
        self.drain()
        self._end()

    def stop(self) -> None:
        """Close the stream now. Items in it are dropped."""
        self._check(is_open=True)
        self._chain.halt.on = True
        self.is_open = False
        self._settle()
        self._crew.dismiss()

    def close(self) -> None:
        """End the threads, and the stream if one is open. The next run or stream starts new threads."""
        if self.is_open:
            self.stop()
        self._crew.dismiss()

    def _end(self) -> None:
        self.is_open = False
        try:
            self._raise_failure()
        finally:
            self._crew.dismiss()

    def _check(self, *, is_open: bool) -> None:
        if self.is_open != is_open:
            state, hint = ("no", "call open()") if is_open else ("an", "call finish() or stop()")
            raise SettingError(f"the runtime has {state} open stream", hint=hint)

    @property
    def _engaged(self) -> int:
        """Number of workers to use now."""
        return self._workers if self._by_load is None else min(self._workers, self._by_load.workers)

    def _begin_work(self) -> None:
        if self._by_load is not None:
            self._began = self._clock()
            self._records = self._chain.scheduler.meters()[0].records_in

    def _end_work(self) -> None:
        """Note the work done, and take on the number of workers that is chosen for what comes."""
        if self._by_load is None or self._began is None:
            return
        records = self._chain.scheduler.meters()[0].records_in - self._records
        spent_s, self._began = self._clock() - self._began, None
        self._by_load.note(records, spent_s)
        if self.is_open:
            self._staff(self._engaged)

    def _staff(self, number: int) -> None:
        """Have this many threads. Called while all are idle."""
        if len(self._crew.threads) > number:
            self._crew.dismiss()
        self._crew.hire(number, _serving(weakref.ref(self), self._crew))

    def _run(self, items: Iterator[Any]) -> None:
        chain = self._chain
        self._feeding = True
        while not chain.halt.on:
            if self._feeding and chain.has_room():
                self._feeding = self._feed_some(items)
            if not self._take_turn():
                if not self._feeding and self._complete():
                    return
                self._await(self._something_to_do)

    def _feed_some(self, items: Iterator[Any]) -> bool:
        """Feed items while there is room. Returns False if there are no more."""
        chain = self._chain
        while chain.has_room():
            try:
                item = next(items)
            except StopIteration:
                return False
            chain.feed(item)
            # The caller processes the first item itself.
            if self._crew.idle and len(chain.first.worklist) > 1:
                self._crew.wake()
        return True

    def _something_to_do(self) -> bool:
        chain = self._chain
        return (
            chain.halt.on
            or chain.scheduler.ready()
            or (chain.has_room() if self._feeding else self._complete())
        )

    def _complete(self) -> bool:
        """Whether all items have left the chain, and no thread is working."""
        return not self._active.load() and self._chain.is_empty()

    def _take_turn(self) -> bool:
        """Work on one operator for a time slice. Returns False if there is nothing to do."""
        chain = self._chain
        turn = chain.scheduler.begin()
        if turn is None:
            return False
        if turn.more and self._crew.idle:
            self._crew.wake()
        began = self._clock()
        pieces, records = 0, 0.0
        try:
            pieces, records = turn.stage.work(turn.budget)
        except Halted:
            return False
        except BaseException as error:
            chain.fail(error)
            return False
        finally:
            chain.scheduler.end(turn, pieces, records, self._clock() - began)
        if self._crew.watchers and self._feeding and chain.has_room():
            self._crew.ring(self._bell)
        return True

    def _serve(self, bell: Bell) -> None:
        """Take turns until there is nothing to do. Called by a thread whose bell was rung."""
        while True:
            self._active.fetch_add(1)
            while not self._chain.halt.on and self._take_turn():
                pass
            self._active.fetch_add(-1)
            self._crew.rest(bell)
            to_do = not self._chain.halt.on and self._chain.scheduler.ready()
            if not (to_do and self._crew.leave(bell)):
                break
        if self._chain.halt.on or self._feeding or self._complete():
            self._crew.ring(self._bell)

    def _await(self, condition: Callable[[], bool], *, watch: bool = False) -> None:
        """Block until the condition holds. With `watch`, the caller is not woken as a worker meanwhile."""
        while not condition():
            self._crew.rest(self._bell, watch=watch)
            if not (condition() and self._crew.leave(self._bell)):
                self._bell.wait()

    def _raise_failure(self) -> None:
        """After a failure, empty the runtime and raise the earliest error."""
        self._feeding = False
        if self._chain.halt.on:
            failed = self._chain
            self._settle()
            raise failed.earliest_error()

    def _settle(self) -> None:
        """Wait for the threads, and empty the runtime."""
        # An interrupt may have come while the caller was waiting.
        self._crew.leave(self._bell)
        self._bell = Bell()
        self._await(lambda: not self._active.load(), watch=True)
        self._chain, self._began = self._new_chain(), None


def _serving(runtime: weakref.ref[Runtime], crew: Crew) -> Callable[[Bell], bool]:
    def serve(bell: Bell) -> bool:
        served = None if crew.leaving else runtime()
        if served is None:
            return False
        served._serve(bell)
        return True

    return serve

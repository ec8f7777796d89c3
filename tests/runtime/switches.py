"""Threads that are switched as often as can be, or where a test says.

The interpreter switches threads wherever it likes; in `Switched` it may not. One thread at a time has the
turn, its code is traced opcode by opcode, and after so many of them the turn passes to another.
Nothing is replaced: atomics are the real ones.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import penstock.runtime

RUNTIME = str(Path(penstock.runtime.__file__ or "").parent)
"""Where the code of the runtime is."""

_LONG_SECONDS = 60.0


@contextmanager
def forced_switches() -> Iterator[None]:
    """Threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run_side_by_side(*works: Callable[[], object]) -> None:
    """Run each in a thread of its own, with forced switches, until all have returned."""
    threads = [threading.Thread(target=work) for work in works]
    with forced_switches():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class Switched:
    """Runs workers in threads, by turns.

    `turns` are pairs (worker, opcodes): who goes how far, in code whose file's path begins with one
    of `traced`. After the last turn those that have not finished are run to their ends, in their
    order. `opcodes` tells afterwards how many each worker took.
    """

    def __init__(
        self,
        workers: Sequence[Callable[[], None]],
        turns: Sequence[tuple[int, int]],
        traced: tuple[str, ...] = (RUNTIME,),
    ) -> None:
        self._workers = workers
        self._turns = list(turns)[::-1]
        self._traced = traced
        self._batons = [threading.Semaphore(0) for _ in workers]
        self._over = threading.Semaphore(0)
        self._running = set(range(len(workers)))
        self._left = 0
        """How many opcodes the turn still has; below 0: it goes to the end of the worker."""
        self._errors: list[BaseException] = []
        self.opcodes = [0] * len(workers)

    def run(self) -> None:
        """Run all to their ends; raises what any of them raised."""
        threads = [
            threading.Thread(target=self._run, args=(worker,), daemon=True)
            for worker in range(len(self._workers))
        ]
        for thread in threads:
            thread.start()
        self._pass_on()
        assert self._over.acquire(timeout=_LONG_SECONDS), "a worker waits for one that is paused"
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _run(self, worker: int) -> None:
        self._batons[worker].acquire()
        # Newer interpreters look at settrace whether any frame wants opcodes.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(lambda frame, event, argument: self._entered(worker, frame))
        try:
            self._workers[worker]()
        except BaseException as error:
            self._errors.append(error)
        finally:
            sys.settrace(None)
            self._running.discard(worker)
            self._pass_on()

    def _entered(self, worker: int, frame: FrameType) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(self._traced):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False

        def trace(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
            if event == "opcode":
                self._count(worker)
            return trace

        return trace

    def _count(self, worker: int) -> None:
        """The worker is about to go on by an opcode."""
        if self._left == 0:
            self._pass_on()
            self._batons[worker].acquire()
        self._left -= 1
        self.opcodes[worker] += 1

    def _pass_on(self) -> None:
        """Give the turn to whom it belongs next, maybe to the one who has it."""
        while self._turns:
            worker, self._left = self._turns.pop()
            if worker in self._running:
                self._batons[worker].release()
                return
        self._left = -1
        if self._running:
            self._batons[min(self._running)].release()
        else:
            self._over.release()

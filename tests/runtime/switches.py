"""Threads that are switched as often as possible, or where a test says.

The interpreter may switch threads anywhere. `Switched` controls that: one thread at a time has the turn, its
code is traced opcode by opcode, and after a given number of opcodes the turn passes to another thread.
Nothing is replaced: the atomics are the real ones.
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
"""Directory of the runtime's code."""

_LONG_SECONDS = 60.0
"""Seconds after which workers are assumed to wait for each other."""


@contextmanager
def forced_switches() -> Iterator[None]:
    """Make the interpreter switch threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run_side_by_side(*works: Callable[[], object]) -> None:
    """Run each function in its own thread, with forced switches, until all have returned."""
    threads = [threading.Thread(target=work) for work in works]
    with forced_switches():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class Switched:
    """Runs workers in threads, by turns.

    `turns` are (worker, opcodes) pairs: the worker runs for that many opcodes of code whose file path begins
    with one of `traced`. After the last turn the remaining workers are run to their ends, in order.
    `opcodes` has afterwards the number of opcodes of each worker.
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
        """Remaining opcodes of the turn; below 0, the worker runs to its end."""
        self._errors: list[BaseException] = []
        self.opcodes = [0] * len(workers)

    def run(self) -> None:
        """Run all workers to their ends. Raises the first error of a worker."""
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
        """Count an opcode that the worker is about to run, or pass the turn on first."""
        if self._left == 0:
            self._pass_on()
            self._batons[worker].acquire()
        self._left -= 1
        self.opcodes[worker] += 1

    def _pass_on(self) -> None:
        """Pass the turn to the next worker, which may be the same one."""
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

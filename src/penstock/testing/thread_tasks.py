"""Couriers as threads: runs the tasks of an epoch's job in the way of Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import count, takewhile
from typing import Any

import pyarrow as pa

from penstock.courier.courier import Courier
from penstock.courier.delivery import Task
from penstock.errors import CutInputError

ATTEMPTS = 4
"""Maximum number of attempts of a task: Spark's `spark.task.maxFailures`."""

Batches = list[pa.RecordBatch]
MakeCourier = Callable[[str, Task, Callable[[], None]], Courier]
"""Creates the courier of a task attempt from the plan as text, the task, and a check for the input's end."""
Read = Callable[[Any, Task], Iterable[pa.RecordBatch]]
"""Reads a partition in a task attempt."""


class TaskLost(Exception):
    """Spark has given up a task, which may still run."""


class ThreadTasks:
    """Runs jobs with one task per partition. A task has four attempts, each in a thread of its own.

    A job that fails leaves its other tasks running for a while, as in Spark. The methods that take `facts`
    are actions for a `Fault` at a courier's point.
    """

    def __init__(self, courier: MakeCourier, read: Read, patience_s: float) -> None:
        """Create the runner. `patience_s` is the longest time that a lost task lingers, and `close` waits."""
        self._courier, self._read, self._patience_s = courier, read, patience_s
        self.attempts = 0
        """Number of task attempts so far, including retries."""
        self._numbers = count()
        self._running: dict[int, Future[Batches]] = {}
        self._cut: dict[int, bool] = {}
        """Attempts whose input breaks off, and whether the courier can notice it."""
        self._next_job, self._cancelled = threading.Event(), threading.Event()
        self._executor = ThreadPoolExecutor(32, thread_name_prefix="task")
        self._threads: list[threading.Thread] = []

    def run_job(self, plan: str, parts: Sequence[Any], reads: int = 1) -> Batches:
        """Run a job of these partitions and return its output. It runs `reads` times, as for some sinks."""
        self.let_go()
        self._next_job = threading.Event()
        batches: Batches = []
        for _ in range(reads):
            self._cancelled = threading.Event()
            tasks = [
                self._executor.submit(self._try, plan, partition, part, self._cancelled)
                for partition, part in enumerate(parts)
            ]
            # A failed job does not end its other tasks; they may go on for a while.
            wait(tasks, return_when=FIRST_EXCEPTION)
            if any(task.done() and task.exception() is not None for task in tasks):
                self.cancel()
            batches = [batch for task in tasks if task.done() for batch in task.result()]
        return batches

    def cancel(self) -> None:
        """Do not retry the tasks of the current job."""
        self._cancelled.set()

    def let_go(self) -> None:
        """Let lost tasks that linger continue."""
        self._next_job.set()

    def close(self) -> None:
        """Wait until all tasks have ended."""
        self.let_go()
        self._executor.shutdown()
        for thread in self._threads:
            thread.join(self._patience_s)
            assert not thread.is_alive(), "a courier is left behind"

    # Actions of faults

    def lose_task(self, facts: Mapping[str, object]) -> None:
        """Let Spark give up the task although it still runs, as if its executor did not answer.

        The task is retried elsewhere. This attempt continues when the next job has begun.
        """
        attempt = _attempt(facts)
        with suppress(Exception):
            self._running[attempt].set_exception(TaskLost("its executor does not answer"))
        self._next_job.wait(self._patience_s)
        time.sleep(attempt % 4 * 0.003)

    def cut_input(self, facts: Mapping[str, object]) -> None:
        """Break off the input of a task here, between two batches, so that the courier can notice it."""
        self._cut[_attempt(facts)] = True

    def shorten_input(self, facts: Mapping[str, object]) -> None:
        """Break off the input of a task here, so that it looks like a normal end to the courier."""
        self._cut[_attempt(facts)] = False

    # One task

    def _try(self, plan: str, partition: int, part: Any, cancelled: threading.Event) -> Batches:
        """Run a task with up to `ATTEMPTS` attempts."""
        last: BaseException | None = None
        for _ in range(ATTEMPTS):
            task = Task(partition, next(self._numbers))
            outcome: Future[Batches] = Future()
            self._running[task.attempt] = outcome
            thread = threading.Thread(target=self._attempt, args=(plan, task, part, outcome))
            self._threads = [t for t in self._threads if t.is_alive()] + [thread]
            thread.start()
            last = outcome.exception()
            del self._running[task.attempt]
            self.attempts += 1
            if last is None:
                return outcome.result()
            if cancelled.is_set():
                break
        raise RuntimeError(f"task {partition} failed: {last!r}") from last

    def _attempt(self, plan: str, task: Task, part: Any, outcome: Future[Batches]) -> None:
        courier = self._courier(plan, task, lambda: self._check_end(task.attempt))
        try:
            whole = iter(self._read(part, task))
            batches = list(courier(takewhile(lambda _: task.attempt not in self._cut, whole)))
            if task.attempt in self._cut:
                raise TaskLost("its input broke off")
        except BaseException as failed:
            with suppress(Exception):
                outcome.set_exception(failed)
        else:
            with suppress(Exception):
                outcome.set_result(batches)

    def _check_end(self, attempt: int) -> None:
        if self._cut.get(attempt):
            raise CutInputError("the input of this task broke off")


def _attempt(facts: Mapping[str, object]) -> int:
    attempt = facts["attempt"]
    assert isinstance(attempt, int)
    return attempt

"""The peers' tasks on Bytewax, in two processes, with its recovery store written each second.

Python has one lock per process, so that two cores need two processes. They exchange rows over TCP.
"""

from __future__ import annotations

import itertools
import socket
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock_bench.peers.stream import (
    FULL,
    REPORT_EVERY,
    SMALL,
    SMALL_ROWS,
    WINDOW_S,
    Stream,
    fold,
)
from penstock_bench.peers.timing import children, rate, tell

_MODULE = "penstock_bench.peers.sides.bytewax_side"
_PROCESSES = 2
_BATCH = 5_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WAIT = timedelta(seconds=10)


def main(task: str, how: str, seconds: str, folder: str) -> None:
    """Time the task, or write its answer."""
    runs = itertools.count()

    def run(rows: int, answer: str = "") -> float:
        return _processes(task, rows, Path(folder, f"recovery-{next(runs)}"), answer)

    facts: dict[str, Any] = {}
    if how != "time":
        answer = Path(folder, "answer")
        answer.mkdir(parents=True)
        run(SMALL_ROWS, str(answer))
    if how != "answer":
        facts = rate(run, float(seconds), first=200_000)
    tell(facts)


def _processes(task: str, rows: int, place: Path, answer: str) -> float:
    from bytewax.recovery import init_db_dir

    place.mkdir(parents=True)
    init_db_dir(place, _PROCESSES)
    ports = ",".join(f"127.0.0.1:{port}" for port in _free_ports(_PROCESSES))
    words = [task, str(rows), str(place), answer, ports]
    return children(_MODULE, [["one", *words, str(number)] for number in range(_PROCESSES)])


def _free_ports(count: int) -> list[int]:
    opened = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in opened]
    for each in opened:
        each.close()
    return ports


def one(task: str, rows: str, place: str, answer: str, ports: str, number: str) -> None:
    """One of the processes of a run. With `answer`, a folder, it writes the small stream's answer there."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.recovery import RecoveryConfig
    from bytewax.testing import cluster_main

    stream = SMALL if answer else FULL
    flow = Dataflow(task)
    keyed = op.input("in", flow, _source(stream, int(rows), task == "windowed"))
    file = Path(answer, f"{number}.txt") if answer else None
    op.output("out", _STEPS[task](op, keyed), _sink(file))
    began = time.monotonic()
    cluster_main(
        flow,
        ports.split(","),
        int(number),
        epoch_interval=timedelta(seconds=1),
        recovery_config=RecoveryConfig(place),
    )
    tell({"seconds": time.monotonic() - began})


def _sum(op: Any, keyed: Any) -> Any:
    def add(total: int | None, v: int) -> tuple[int, int]:
        total = (total or 0) + v
        return total, total

    return op.stateful_map("sum", keyed, add)


def _windowed(op: Any, keyed: Any) -> Any:
    from bytewax.operators import windowing

    # Its clock is one per key and knows nothing of sources: it waits, so that neither process is late.
    clock = windowing.EventClock(lambda t: t, wait_for_system_duration=_WAIT)
    windower = windowing.TumblingWindower(length=timedelta(seconds=WINDOW_S), align_to=_EPOCH)
    # Its `count_window` makes a key of each value. Here the rows have their keys already.
    return windowing.fold_window(
        "count", keyed, clock, windower, lambda: 0, lambda n, _: n + 1, lambda a, b: a + b
    ).down


def _python_fn(op: Any, keyed: Any) -> Any:
    def step(state: Any, v: int) -> tuple[Any, Any]:
        state = fold(state, v)
        return state, state if state[0] % REPORT_EVERY == 0 else None

    every = op.stateful_map("fold", keyed, step)
    return op.filter("reports", every, lambda row: row[1] is not None)


_STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "pass_through": lambda op, keyed: keyed,
    "sum": _sum,
    "windowed": _windowed,
    "python_fn": _python_fn,
}


def _source(stream: Stream, rows: int, timed: bool) -> Any:
    """A source with one partition per process, of every second row. Keys are text, as Bytewax wants them."""
    import numpy as np
    from bytewax.inputs import (
        FixedPartitionedSource,
        StatefulSourcePartition,
    )

    names = [str(key) for key in range(stream.keys)]

    class Part(StatefulSourcePartition):  # type: ignore[misc]
        def __init__(self, at: int) -> None:
            self._at = at

        def next_batch(self) -> list[tuple[str, Any]]:
            if self._at >= rows:
                raise StopIteration
            end = self._at + _BATCH * _PROCESSES
            number = np.arange(self._at, min(end, rows), _PROCESSES)
            self._at = end
            key, value, t_us = stream.columns(number)
            values = _times(t_us) if timed else value.tolist()
            return [(names[k], v) for k, v in zip(key.tolist(), values, strict=True)]

        def snapshot(self) -> int:
            return self._at

    class Source(FixedPartitionedSource):  # type: ignore[misc]
        def list_parts(self) -> list[str]:
            return [str(part) for part in range(_PROCESSES)]

        def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Part:
            return Part(int(for_part) if resume_state is None else resume_state)

    return Source()


def _times(t_us: Any) -> list[datetime]:
    """Event times; to the millisecond, because their objects cost more than all else that makes a row."""
    ms = (t_us // 1000).tolist()
    made = {each: _EPOCH + timedelta(milliseconds=each) for each in set(ms)}
    return [made[each] for each in ms]


def _sink(file: Path | None) -> Any:
    """A sink that drops all rows, or writes their numbers to a file."""
    from bytewax.outputs import (
        DynamicSink,
        StatelessSinkPartition,
    )

    class Part(StatelessSinkPartition):  # type: ignore[misc]
        def write_batch(self, items: list[Any]) -> None:
            if file is not None:
                with file.open("a") as lines:
                    lines.writelines(f"{item}\n" for item in items)

    class Sink(DynamicSink):  # type: ignore[misc]
        def build(self, *_: Any) -> Part:
            return Part()

    return Sink()


if __name__ == "__main__":
    if sys.argv[1] == "one":
        one(*sys.argv[2:8])
    else:
        main(*sys.argv[1:5])

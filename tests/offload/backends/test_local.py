"""Local burst workers as processes: killed, hung, slow, ended when idle, and ended with their driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from penstock.errors import HostLostError, SettingError
from penstock.offload.backends.aws.backend import LambdaFunctions
from penstock.offload.backends.backend import WorkerFailed, invoker_at
from penstock.offload.backends.local.backend import (
    LocalFunctions,
    LocalInvoker,
    LocalWorkers,
    reachable,
)
from penstock.offload.backends.messages import WorkerAnswer
from penstock.testing import Fault, Pace
from penstock.wire.access import Access
from penstock.wire.addresses import Listen
from tests.offload.backends.flows import counting, doubled, request, rows, slow_or_wrong
from tests.offload.backends.waiting import until

FLOW = counting(slow_or_wrong)
ACCESS = Access("token", functions=LocalFunctions())


@pytest.fixture(scope="module")
def started() -> Iterator[LocalWorkers]:
    workers = LocalFunctions(at_most=2, idle_ms=300).start(FLOW, "run", Access("token"))
    yield workers
    workers.stop()
    assert workers._process.returncode == 0


def busy(started: LocalWorkers) -> int | None:
    return next((pid for pid, what in started.up().items() if what == "busy"), None)


def while_busy(
    started: LocalWorkers, threads: ThreadPoolExecutor, timeout_ms: int
) -> Future[bytes]:
    """An invocation that is in progress in a burst worker."""
    body = request(FLOW, ("slow", 60_000)).to_bytes()
    under_way = threads.submit(invoker_at(started.reach, ACCESS).invoke, body, timeout_ms)
    until(lambda: busy(started))
    return under_way


def test_a_burst_worker_that_is_killed_in_the_middle(started: LocalWorkers) -> None:
    with ThreadPoolExecutor() as threads:
        under_way = while_busy(started, threads, 60_000)
        os.kill(busy(started) or 0, signal.SIGKILL)
        with pytest.raises(WorkerFailed, match="a burst worker died") as raised:
            under_way.result(10)
    assert raised.value.failure == "failed"
    assert invoker_at(started.reach, ACCESS).invoke(request(FLOW, ("a", 1)).to_bytes(), 10_000)


def test_a_burst_worker_that_hangs_is_ended(started: LocalWorkers) -> None:
    with ThreadPoolExecutor() as threads:
        under_way = while_busy(started, threads, 1_000)
        hung = busy(started) or 0
        os.kill(hung, signal.SIGSTOP)
        with pytest.raises(WorkerFailed) as raised:
            under_way.result(10)
    assert raised.value.failure == "timeout"
    until(lambda: not psutil.pid_exists(hung))
    assert invoker_at(started.reach, ACCESS).invoke(request(FLOW, ("a", 1)).to_bytes(), 10_000)


def test_without_requests_there_are_no_burst_workers(started: LocalWorkers) -> None:
    invoker_at(started.reach, ACCESS).invoke(request(FLOW, ("a", 1)).to_bytes(), 10_000)
    assert started.up()
    until(lambda: not started.up())


def test_large_requests_and_answers(started: LocalWorkers) -> None:
    many = pa.concat_batches([rows(*((f"key {n}" * 20, n) for n in range(30_000)))] * 3)
    asked = request(FLOW)
    asked = type(asked)(asked.id, asked.steps, asked.time, asked.flow, (many,))
    body = asked.to_bytes()
    assert len(body) > 10 << 20
    got = WorkerAnswer.from_bytes(invoker_at(started.reach, ACCESS).invoke(body, 30_000), asked)
    assert sum(batch.num_rows for batch in got.batches) == 30_000


def test_a_stopped_service_leaves_no_connection_and_reports_its_usage() -> None:
    stopped = LocalFunctions(at_most=1).start(FLOW, "run", Access("token"))
    invoker_at(stopped.reach, ACCESS).invoke(request(FLOW, ("a", 1)).to_bytes(), 10_000)
    stopped.stop()
    stopped.stop()
    stopped.warm(1)
    assert stopped.used().invocations == 1
    with pytest.raises(HostLostError, match="closed"):
        stopped.up()


def test_requests_without_the_token_are_refused(started: LocalWorkers) -> None:
    stranger = LocalInvoker(Access("another token"), started._service.location)
    with pytest.raises(WorkerFailed, match="token"):
        stranger.invoke(request(FLOW, ("a", 1)).to_bytes(), 5_000)


def test_burst_workers_have_the_configured_speed_and_start_time() -> None:
    flow = counting(doubled)
    functions = LocalFunctions(at_most=1, start_ms=300, speed=0.5)
    started = functions.start(
        flow, "run", Access("token"), faults=(Fault("burst.work", Pace(500.0), hits=()),)
    )
    try:
        invoker = invoker_at(started.reach, ACCESS)
        body = request(flow, *([("a", 1)] * 100)).to_bytes()
        times = []
        for _ in range(2):
            begun = time.perf_counter()
            invoker.invoke(body, 10_000)
            times.append(time.perf_counter() - begun)
        used = started.used()
    finally:
        started.stop()
    assert times[0] >= 0.3 + 0.2  # its start, then 100 records at 500 per second
    assert 0.2 <= times[1] < times[0]
    assert used.cold_starts == 1
    assert 300 <= used.cold_start_ms < 3_000
    assert started.used() == used  # also after the end


def test_a_service_that_dies_fails_its_requests_and_nothing_else() -> None:
    started = LocalFunctions(keep_warm=1).start(FLOW, "run", Access("token"))
    invoker, body = invoker_at(started.reach, ACCESS), request(FLOW, ("a", 1)).to_bytes()
    invoker.invoke(body, 10_000)
    used = started.used()
    family = psutil.Process(started._process.pid).children(recursive=True)
    started._process.kill()
    with pytest.raises(WorkerFailed) as raised:
        invoker.invoke(body, 5_000)
    assert raised.value.failure == "failed"
    started.warm(3)
    assert started.used() == used
    started.stop()
    started.stop()
    assert not psutil.wait_procs(family, timeout=10)[1]


def test_a_flow_that_cannot_be_loaded_is_an_error_at_once() -> None:
    with pytest.raises(SettingError, match="did not start"):
        LocalFunctions().start(counting(_Unloadable()), "run", Access("token"))


class _Unloadable:
    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def __reduce__(self) -> tuple[object, ...]:
        return (int, ("no number",))


def test_all_end_with_the_driver_however_it_ends(tmp_path: Path) -> None:
    """One burst worker is busy with long work when the driver is killed."""
    driver = tmp_path / "driver.py"
    driver.write_text(
        textwrap.dedent("""
        import threading, time
        from penstock.offload.backends.local.backend import LocalFunctions
        from tests.offload.backends.flows import counting, request, slow_or_wrong
        from penstock.wire.access import Access

        flow = counting(slow_or_wrong)
        started = LocalFunctions(keep_warm=2).start(flow, "run", Access("token"))
        body = request(flow, ("slow", 600_000)).to_bytes()
        invoker = LocalFunctions().connect(started.reach, Access("token"))
        threading.Thread(target=invoker.invoke, args=(body, 600_000)).start()
        while sorted(started.up().values()) != ["busy", "idle"]:
            time.sleep(0.01)
        print("ready", flush=True)
        time.sleep(600)
        """)
    )
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, str(driver)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) == 4  # the service, the fork server and two burst workers
    process.kill()
    process.communicate()
    _, left = psutil.wait_procs(family, timeout=10)
    assert not left


def test_nothing_is_left_of_burst_workers_that_are_stopped() -> None:
    started = LocalFunctions(keep_warm=2).start(counting(doubled), "run", Access("token"))
    until(lambda: len(started.up()) == 2)
    service = psutil.Process(started._process.pid)
    family = [service, *service.children(recursive=True)]
    assert len(family) == 4  # with the fork server
    for process in family:
        process.suspend()
    started.stop()
    until(lambda: not any(process.is_running() for process in family))


def test_couriers_on_other_machines_use_the_address_of_the_driver() -> None:
    listen = Listen("127.0.0.2")
    functions = reachable(LocalFunctions(at_most=1), listen)
    started = functions.start(FLOW, "run", Access("token"))
    try:
        assert "grpc://127.0.0.2:" in started.reach
        asked = request(FLOW, ("a", 1))
        answer = invoker_at(started.reach, ACCESS).invoke(asked.to_bytes(), 20_000)
        assert WorkerAnswer.from_bytes(answer, asked).batches
    finally:
        started.stop()
    other = LambdaFunctions("flow")
    assert reachable(other, listen) is other

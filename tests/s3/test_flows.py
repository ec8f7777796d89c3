"""Flows in both modes with their checkpoints on S3, through everything that a store and a driver may do:
each row counts once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock import codec
from penstock_bench.s3_faults import FaultProxy, S3Fault, faulty
from penstock_bench.s3_server import S3Server, running_s3
from tests.kafka.test_live import FlowProcess, wait
from tests.s3.flow_process import RATE, Run
from tests.spark.test_switching import windows

pytestmark = [pytest.mark.s3, pytest.mark.timeout(590)]

BAD = (
    S3Fault("slow", share=0.1, seconds=0.3),
    S3Fault("error", share=0.05),
    S3Fault("throttle", share=0.05),
    S3Fault("reset", share=0.05),
    S3Fault("lost", share=0.05, method="PUT"),
    S3Fault("cut", share=0.05, method="GET"),
)


@pytest.fixture
def server(s3: S3Server) -> Iterator[S3Server]:
    """A server of the test's own, which may be killed."""
    with running_s3() as made:
        yield made


class S3Flow(FlowProcess):
    module = "tests.s3.flow_process"

    def goes_on(self, epochs: int = 4) -> None:
        """Wait for so many epochs from now on."""
        last = self.ask("query.progress[-1].epoch if query.progress else -1")
        self.until(f"query.progress and query.progress[-1].epoch >= {last} + {epochs}")


@pytest.mark.parametrize("mode", ["live", "micro_batch"])
def test_each_row_counts_once_whatever_fails(mode: str, server: S3Server, tmp_path: Path) -> None:
    out, log, began = tmp_path / "out", tmp_path / "log", time.monotonic()
    with faulty(server.endpoint, seed=7) as proxy:
        settings = server.settings(proxy.endpoint)
        run = Run(mode, f"s3a://{server.bucket}/{mode}", str(out), None, settings)
        _through_faults(run, server, proxy, log)
        flow = S3Flow(codec.text(run), log=log)  # with faults, after a crash
        try:
            flow.goes_on()
            assert sum(proxy.done.values()) > 10
            proxy.clear()
            flow.ask("other := again()")
            flow.until("query.exception() is not None")
            assert "has started a flow" in flow.ask("repr(query.exception())")
        finally:
            flow.end()
        rows = int(RATE * (time.monotonic() - began))  # more than have come yet
        run = replace(run, mode="live", rows=rows, close=True)
        flow = S3Flow(codec.text(run), log=log)
        try:
            flow.until("not query.is_active")
            assert flow.ask("query.status.state") == "finished"
        finally:
            flow.end()
    assert sum(windows(out).values()) == rows


def _through_faults(run: Run, server: S3Server, proxy: FaultProxy, log: Path) -> None:
    """A first driver meets bad answers, and a server that is killed under it; then it is killed itself."""
    flow = S3Flow(codec.text(run), log=log)
    try:
        flow.goes_on(2)
        proxy.order(*BAD)
        flow.goes_on()
        server.kill()
        wait(lambda: flow.ask("query.status.message"))
        server.start()
        flow.goes_on()
    finally:
        flow.end()

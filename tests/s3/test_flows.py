"""Flows in both modes with their checkpoints on S3, through failures of the store and the driver: each row
counts once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from penstock import codec
from penstock_bench.s3_faults import FaultProxy, S3Fault, faulty
from penstock_bench.s3_server import S3Server, running_s3
from tests.kafka.driving import FlowProcess, wait
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
    """A server for one test, which may be killed."""
    with running_s3() as made:
        yield made


class S3Flow(FlowProcess):
    module = "tests.s3.flow_process"

    def goes_on(self, epochs: int = 4) -> None:
        """Wait for this number of further epochs."""
        last = self.ask("query.progress[-1].epoch if query.progress else -1")
        self.until(f"query.progress and query.progress[-1].epoch >= {last} + {epochs}")


@dataclass(frozen=True)
class Trial:
    """A flow on a store behind a proxy."""

    run: Run
    server: S3Server
    proxy: FaultProxy
    log: Path
    began: float

    @contextmanager
    def flow(self, **changes: Any) -> Iterator[S3Flow]:
        """The flow in its own process, which is killed at the end of the block."""
        flow = S3Flow(codec.text(replace(self.run, **changes)), log=self.log)
        try:
            yield flow
        finally:
            flow.end()

    def check(self) -> None:
        """Let the flow end, in live mode, and check that each row counted once."""
        rows = int(RATE * (time.monotonic() - self.began))  # More than have arrived yet.
        with self.flow(mode="live", rows=rows, close=True) as flow:
            flow.until("not query.is_active")
            assert flow.ask("query.status.state") == "finished"
        assert sum(windows(Path(self.run.out)).values()) == rows


@pytest.fixture(params=["live", "micro_batch"])
def trial(request: pytest.FixtureRequest, server: S3Server, tmp_path: Path) -> Iterator[Trial]:
    with faulty(server.endpoint, seed=7) as proxy:
        folder = f"s3a://{server.bucket}/flow"
        settings = server.settings(proxy.endpoint)
        run = Run(request.param, folder, str(tmp_path / "out"), None, settings)
        yield Trial(run, server, proxy, tmp_path / "log", time.monotonic())


def test_each_row_counts_once_whatever_fails(trial: Trial) -> None:
    """Bad answers, a server that is killed and comes back, and a driver that is killed."""
    with trial.flow() as flow:
        flow.goes_on(2)
        trial.proxy.order(*BAD)
        flow.goes_on()
        trial.server.kill()
        wait(lambda: flow.ask("query.status.message"))
        trial.server.start()
        flow.goes_on()
    assert sum(trial.proxy.done.values()) > 10
    trial.check()


def test_of_two_drivers_the_newer_one_goes_on(trial: Trial) -> None:
    with trial.flow() as flow:
        flow.goes_on(2)
        flow.ask("(newer := again()) and None")
        flow.until("query.exception() is not None")
        assert "has started a flow" in flow.ask("repr(query.exception())")
    trial.check()

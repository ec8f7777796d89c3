"""Queries made up for tests of what people see: looks, epochs, moments and recordings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.control.examine.success import FlowMeter
from penstock.control.journal.entry import Entry
from penstock.control.money import Money
from penstock.driver.progress import (
    EpochProgress,
    HostProgress,
    Latency,
    MigrationProgress,
)
from penstock.model import SLA, HostId, StepId
from penstock.observe.moment import Look, Moment, MomentMaker, StepLook
from penstock.observe.recording import FlowFacts, KeptRecording
from penstock.plan.epoch import RouteTable
from penstock.plan.placement import Handover

START_MS = 1_790_000_000_000.0
FACTS = FlowFacts("clicks", "f1", "micro_batch", "file:///tmp/ck", START_MS, {"clicks": 8})
SLA_1S = SLA(1000, 1000)


def host_facts(host: str, health: str = "good", rate: float = 500.0) -> dict[str, Any]:
    """A host as `control_facts` shows it."""
    figures = {"service_rate": 2_000.0, "latency_ms": 120.0, "projected_ms": 150.0, "slots": 4}
    return {"host": host, "health": health, "rate": rate, **figures}


def control_facts(hosts: Sequence[str], **more: Any) -> dict[str, Any]:
    """The state of control, as the driver shows it."""
    step = {
        "health": "good", "treating": None, "at_least": 1, "at_most": 4, "margin": 0.2,
        "alert_ms": 500.0, "share": 1.0, "hosts": [host_facts(host) for host in hosts],
        "hot_keys": [], "offload": None,
    }  # fmt: skip
    return {"policy": "switch", "dry_run": False, "steps": {"clicks": step | more}}


def look(
    second: float,
    hosts: Sequence[str] = ("clicks/0", "clicks/1"),
    control: dict[str, Any] | None = None,
    **more: Any,
) -> Look:
    """A query that many seconds after its start, with 8 slots in equal parts on these hosts."""
    owner = np.arange(8, dtype=np.int32) * len(hosts) // 8
    routes = RouteTable(tuple(map(HostId, hosts)), owner)
    step = StepLook("clicks", routes, list(hosts), 0, None if control is None else [125.0] * 8)
    usual: dict[str, Any] = {
        "time_ms": START_MS + 1000 * second,
        "state": "running",
        "message": "running",
        "backlog": 40,
        "hosts_up": {host: 100 + n for n, host in enumerate(hosts)},
        "steps": [step],
        "couriers": 0,
        "sla": SLA_1S,
        "control": control,
        "money": Money(hosts=0.001 * second, functions=0.0),
    }
    return Look(**usual | more)


def epoch(
    number: int, second: float, rows: int = 100, mean_ms: float = 200.0, **more: Any
) -> EpochProgress:
    """An epoch that reached the sink that many seconds after the query's start, after 150 ms."""
    usual: dict[str, Any] = {
        "runs": 1,
        "partitions": 2,
        "started_ms": int(START_MS + 1000 * second - 150),
        "sink_ms": 150.0,
        "seal_ms": 20.0,
        "latency": Latency(mean_ms, mean_ms, 2 * mean_ms, (0,) * 5 + (rows,) + (0,) * 8),
        "watermark_ms": None,
        "dead_letters": 0,
        "hosts": (HostProgress("clicks/0", 10, 4_000, rows // 2, 30.0),),
        "read_ms": 90.0,
        "loads": {"clicks": np.full(8, rows // 8)},
    }
    return EpochProgress(epoch=number, rows=rows, **usual | more)


def moved(*slots: int, source: str = "clicks/0", target: str = "clicks/1") -> MigrationProgress:
    """A move of slots, for which 5 entries of 700 bytes in all were fetched."""
    handover = Handover(StepId("clicks"), slots, HostId(source), HostId(target), "move")
    return MigrationProgress(handovers=(handover,), fetched_keys=5, fetched_bytes=700, fetches=1)


def recording(
    seconds: int = 30, burst: range = range(0), entries: Sequence[Entry] = (), sla: SLA = SLA_1S
) -> KeptRecording:
    """A query with an epoch and a moment for each second. In seconds of `burst` it has five times the rows,
    three hosts, and a latency of 1.5 s. The 99th percentile is twice the average."""
    main = next((bound for bound in sla.bounds if bound.step is None), sla)
    maker, meter, moments = MomentMaker(START_MS), FlowMeter(main), list[Moment]()
    for second in range(1, seconds + 1):
        hot = second in burst
        hosts = ("clicks/0", "clicks/1", "clicks/2")[: 3 if hot else 2]
        more = {"migration": moved(7, target="clicks/2")} if second == burst.start and hot else {}
        ended = epoch(second, second, 500 if hot else 100, 1500.0 if hot else 200.0, **more)
        before = meter.windows, meter.kept
        assert ended.latency is not None
        latency_ms = ended.latency.p99_ms if main.p99 else ended.latency.mean_ms
        meter.take(ended.done_ms, ended.rows, latency_ms)
        judged = meter.windows - before[0], meter.kept - before[1]
        now = look(second, hosts, control_facts(hosts), sla=sla)
        moments.append(maker.make(now, [ended], *judged))
    return KeptRecording(FACTS, moments, list(entries))

"""Everything `Flow.start` has settled, in either mode."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

from penstock.control.elastic import Elastic
from penstock.model import SLA
from penstock.plan.migration import Migration
from penstock.plan.steps import FlowPlan
from penstock.settings import Settings
from penstock.spark.sinks import Sink
from penstock.state.store.store import Place


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a started flow is to be."""

    flow: FlowPlan
    spark: SparkSession
    sink: Sink
    store: Place
    """Penstock's part of the checkpoint, claimed for this start."""
    flow_id: str
    hosts: dict[str, int]
    migration: Migration
    settings: Settings
    sla: SLA | None
    elastic: Elastic | None
    """How hosts follow the load; None: they do not."""
    close: bool
    """When all that is there has been read, the input has ended."""
    late_rows: dict[tuple[str, int], Sink]
    """(step, input) -> where rows go that came behind its watermark."""
    name: str | None
    temporary: str
    """A checkpoint folder of Penstock's own that goes when the query ends; empty: there is none."""

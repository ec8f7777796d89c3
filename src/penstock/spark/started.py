"""The options of a started flow, checked and complete, in either mode."""

from __future__ import annotations

from dataclasses import dataclass
from socket import socket

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
    """The options of a started flow."""

    flow: FlowPlan
    spark: SparkSession
    sink: Sink
    store: Place
    """Penstock's part of the checkpoint, which this start owns."""
    flow_id: str
    """Id of the flow, which stays the same for the life of its checkpoint."""
    hosts: dict[str, int]
    """Step -> number of hosts at the start."""
    migration: Migration
    settings: Settings
    sla: SLA | None
    elastic: Elastic | None
    """Autoscaling settings; None if autoscaling is off."""
    close: bool
    """Whether the input ends with the rows that there are now, so that all windows close."""
    late_rows: dict[tuple[str, int], Sink]
    """(step, input) -> sink for its late rows."""
    name: str | None
    """Name of the query; None if it has none."""
    dashboard: socket | None
    """Socket on which the dashboard listens; None if there is none."""
    telemetry: bool
    """Whether metrics and traces go to OpenTelemetry."""
    temporary: str
    """Temporary checkpoint folder, which is removed when the query ends; "" if there is none."""
    report: str | None = None
    """File that gets a report when the query ends; None for no report."""

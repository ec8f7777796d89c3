"""Penstock: a latency SLA for stateful streaming on Apache Spark, in Python.

A flow is a source DataFrame, steps with keyed state, and a sink:

>>> import penstock as ps
>>> spark = ps.session()                                            # doctest: +SKIP
>>> flow = (ps.flow(spark.readStream.format("rate").load(), arrival="timestamp")
...           .key_by("value", slots=64)
...           .aggregate(n=ps.count())
...           .sla(latency="1s", window="1s"))                      # doctest: +SKIP
>>> query = flow.start(ps.to("console"), checkpoint="out", hosts=2)  # doctest: +SKIP

The folders of the package, in the order of a record's path and then of a decision's:

    flows/       the API for declaring and starting flows
    plan/        the compiled steps, the plan of an epoch, the owner of each slot
    spark/       sessions, the epoch callback, host jobs, sinks: the only folder that runs on Spark
    live/        sources and sinks that couriers read and write without Spark
    courier/     code inside Spark tasks: each step's route to hosts and back, and the task's report
    exchange/    a keyed step's rows in transit: shared by couriers and by a chain on one host
    wire/        messages, and Arrow Flight with a token
    host/        the host: a pure state machine, its server, its life cycle
    operators/   steps: aggregates, windows, joins, top-N, processors; each a plan, a sender, an operator
    state/       keys, tables, variables, the store
    runtime/     a chain of operators on many cores, with the output of a serial run
    driver/      the registry of hosts, the fleet, the epoch protocol, the live control loop
    control/     decisions, as pure functions: examine, diagnose, treat, realize; policies; cost; the journal
    offload/     bursts: which rows go to short-lived workers, when, and where those run
    sim/         the same control code over a simulated data plane
    console/     tools for operators: `penstock ctl`, `state`, `doctor`
    cli/         the `penstock` command
    testing/     tests of flows and processors without Spark, with moves and faults

Each folder's docstring lists its files. Imports go one way: cli and testing side by side, console, flows,
spark, driver, sim, offload, live, then courier, host and control side by side, exchange, wire, plan,
operators, then state and runtime side by side, and at the bottom settings, faults, extensions,
call_text, codec, logs, model, kernel_cache and errors.
"""

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.kernel_cache import keep_kernels

__version__ = "0.1.0"

if TYPE_CHECKING:
    from penstock.control.elastic import Elastic
    from penstock.control.examine.vitals import Vitals
    from penstock.control.money import FunctionPrice, HostPrice
    from penstock.control.treat.decision import Bounds, Decision, Policy, Treatment, new_host
    from penstock.errors import (
        CheckpointError,
        FlowError,
        HostLostError,
        NullKeyError,
        PenstockError,
        ProtocolError,
        SettingError,
        StepError,
        StoreError,
    )
    from penstock.flows.begin import flow
    from penstock.flows.flow import Flow, KeyedFlow, WindowedFlow
    from penstock.live.sinks.sink import RowIds
    from penstock.live.sources.kafka import kafka
    from penstock.live.sources.rate import rate
    from penstock.logs import log_to_stderr
    from penstock.model import SLA
    from penstock.offload.backends.aws.backend import LambdaFunctions
    from penstock.offload.backends.http.backend import HttpFunctions
    from penstock.offload.backends.local.backend import LocalFunctions
    from penstock.operators.aggregate.aggregates import (
        aggregator,
        approx_distinct,
        arrow_aggregator,
        avg,
        count,
        count_distinct,
        first,
        last,
        max,
        min,
        sum,
    )
    from penstock.operators.operator import CHANGE
    from penstock.operators.process.compiled import compiled
    from penstock.operators.process.processor import KeyedProcessor
    from penstock.operators.window.windows import Window, hopping, session_window, tumbling
    from penstock.plan.migration import Migration
    from penstock.settings import Settings, Tls
    from penstock.spark.query import FlowQuery, QueryStatus
    from penstock.spark.session import configure, session
    from penstock.spark.sinks import collect, foreach_arrow, foreach_batch, to
    from penstock.spark.sources import source
    from penstock.state.variables.values import Row

_HOMES = {
    "control.elastic": "Elastic",
    "control.examine.vitals": "Vitals",
    "control.money": "FunctionPrice HostPrice",
    "control.treat.decision": "Bounds Decision Policy Treatment new_host",
    "errors": "CheckpointError FlowError HostLostError NullKeyError PenstockError ProtocolError "
    "SettingError StepError StoreError",
    "flows.begin": "flow",
    "flows.flow": "Flow KeyedFlow WindowedFlow",
    "live.sinks.sink": "RowIds",
    "live.sources.kafka": "kafka",
    "live.sources.rate": "rate",
    "logs": "log_to_stderr",
    "model": "SLA",
    "offload.backends.aws.backend": "LambdaFunctions",
    "offload.backends.http.backend": "HttpFunctions",
    "offload.backends.local.backend": "LocalFunctions",
    "operators.aggregate.aggregates": "aggregator approx_distinct arrow_aggregator avg count "
    "count_distinct first last max min sum",
    "operators.operator": "CHANGE",
    "operators.process.compiled": "compiled",
    "operators.process.processor": "KeyedProcessor",
    "operators.window.windows": "Window hopping session_window tumbling",
    "plan.migration": "Migration",
    "settings": "Settings Tls",
    "spark.query": "FlowQuery QueryStatus",
    "spark.session": "configure session",
    "spark.sinks": "collect foreach_arrow foreach_batch to",
    "spark.sources": "source",
    "state.variables.values": "Row",
}
"""Module below `penstock` -> the public names that it defines."""
keep_kernels(Path(__file__).parent, os.environ)  # before any kernel is loaded

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that a host loads no Spark and `penstock --help` starts fast."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"penstock.{_HOME_OF[name]}"), name)
    return value


__all__ = [
    "CHANGE",
    "SLA",
    "Bounds",
    "CheckpointError",
    "Decision",
    "Elastic",
    "Flow",
    "FlowError",
    "FlowQuery",
    "FunctionPrice",
    "HostLostError",
    "HostPrice",
    "HttpFunctions",
    "KeyedFlow",
    "KeyedProcessor",
    "LambdaFunctions",
    "LocalFunctions",
    "Migration",
    "NullKeyError",
    "PenstockError",
    "Policy",
    "ProtocolError",
    "QueryStatus",
    "Row",
    "RowIds",
    "SettingError",
    "Settings",
    "StepError",
    "StoreError",
    "Tls",
    "Treatment",
    "Vitals",
    "Window",
    "WindowedFlow",
    "aggregator",
    "approx_distinct",
    "arrow_aggregator",
    "avg",
    "collect",
    "compiled",
    "configure",
    "count",
    "count_distinct",
    "first",
    "flow",
    "foreach_arrow",
    "foreach_batch",
    "hopping",
    "kafka",
    "last",
    "log_to_stderr",
    "max",
    "min",
    "new_host",
    "rate",
    "session",
    "session_window",
    "source",
    "sum",
    "to",
    "tumbling",
]

"""Penstock: a latency SLA for stateful streaming on Apache Spark, in Python.

A flow is a source DataFrame, steps with keyed state, and a sink:

>>> import penstock as ps
>>> spark = ps.session()                                            # doctest: +SKIP
>>> flow = (ps.flow(spark.readStream.format("rate").load(), arrival="timestamp")
...           .key_by("value", slots=64)
...           .aggregate(n=ps.count())
...           .sla(latency="1s", window="1s"))                      # doctest: +SKIP
>>> query = flow.start(ps.to("console"), checkpoint="out", hosts=2)  # doctest: +SKIP

The map, along the way of a record and then of a decision:

    flows/       what a user writes, and how it is started
    plan/        the compiled steps, the plan of an epoch, who owns which slot
    spark/       sessions, the epoch callback, host jobs, sinks: the only place that runs on Spark
    courier/     inside Spark tasks: slots, split, exchange with hosts
    wire/        messages, and Arrow Flight with a token
    host/        the host: a pure machine, its server, its life
    operators/   steps: aggregates, windows, joins, top-N, processors; each a plan, a sender, an operator
    state/       keys, tables, variables, the store
    runtime/     a chain of operators on many cores, its output that of a serial run
    driver/      the registry of hosts, the fleet, the epoch protocol, the live control loop
    control/     examine, diagnose, treat, realize: pure; policies; money; the journal
    offload/     bursts: what is given to short-lived workers, when, and where they run
    sim/         the same control code over a simulated data plane
    console/     what people see from outside: `penstock ctl`, `state`, `demo`, `doctor`
    cli/         the `penstock` command
    testing      testing processors without Spark, and flows with faults

Each folder's docstring is its own map. Imports go one way: cli, console, flows, spark, driver, sim,
offload, then courier, host and control side by side, wire, plan, testing, operators, then state and runtime
side by side, and at the bottom settings, faults, extensions, call_text, codec, model and errors.
"""

import ast
from importlib import import_module
from inspect import getsource
from sys import modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the public names: read by type checkers and editors, and by `_public` below
    from penstock.control.elastic import Elastic as Elastic
    from penstock.control.examine.vitals import Vitals as Vitals
    from penstock.control.money import FunctionPrice as FunctionPrice
    from penstock.control.money import HostPrice as HostPrice
    from penstock.control.treat.decision import Bounds as Bounds
    from penstock.control.treat.decision import Decision as Decision
    from penstock.control.treat.decision import Policy as Policy
    from penstock.control.treat.decision import Treatment as Treatment
    from penstock.control.treat.decision import new_host as new_host
    from penstock.errors import CheckpointError as CheckpointError
    from penstock.errors import FlowError as FlowError
    from penstock.errors import HostLostError as HostLostError
    from penstock.errors import NullKeyError as NullKeyError
    from penstock.errors import PenstockError as PenstockError
    from penstock.errors import ProtocolError as ProtocolError
    from penstock.errors import SettingError as SettingError
    from penstock.errors import StepError as StepError
    from penstock.errors import StoreError as StoreError
    from penstock.flows.flow import Flow as Flow
    from penstock.flows.flow import KeyedFlow as KeyedFlow
    from penstock.flows.flow import WindowedFlow as WindowedFlow
    from penstock.flows.flow import flow as flow
    from penstock.model import SLA as SLA
    from penstock.offload.backends.aws.backend import LambdaFunctions as LambdaFunctions
    from penstock.offload.backends.local.backend import LocalFunctions as LocalFunctions
    from penstock.operators.aggregate.aggregates import approx_distinct as approx_distinct
    from penstock.operators.aggregate.aggregates import avg as avg
    from penstock.operators.aggregate.aggregates import count as count
    from penstock.operators.aggregate.aggregates import count_distinct as count_distinct
    from penstock.operators.aggregate.aggregates import first as first
    from penstock.operators.aggregate.aggregates import last as last
    from penstock.operators.aggregate.aggregates import max as max
    from penstock.operators.aggregate.aggregates import min as min
    from penstock.operators.aggregate.aggregates import sum as sum
    from penstock.operators.operator import CHANGE as CHANGE
    from penstock.operators.process.processor import KeyedProcessor as KeyedProcessor
    from penstock.operators.window.windows import Window as Window
    from penstock.operators.window.windows import hopping as hopping
    from penstock.operators.window.windows import session_window as session_window
    from penstock.operators.window.windows import tumbling as tumbling
    from penstock.plan.migration import Migration as Migration
    from penstock.settings import Settings as Settings
    from penstock.spark.query import FlowQuery as FlowQuery
    from penstock.spark.query import QueryStatus as QueryStatus
    from penstock.spark.session import configure as configure
    from penstock.spark.session import session as session
    from penstock.spark.sinks import collect as collect
    from penstock.spark.sinks import foreach_batch as foreach_batch
    from penstock.spark.sinks import to as to
    from penstock.state.variables.values import Row as Row


def _public() -> dict[str, str]:
    """Public name -> its module, as the imports above have it: they are the only list of names."""
    nodes = ast.walk(ast.parse(getsource(modules[__name__])))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return {one.asname: str(node.module) for node in imports for one in node.names if one.asname}


_HOMES = _public()
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a host needs no Spark, `penstock --help` nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value

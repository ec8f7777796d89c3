"""Flows as users write them, and how they are started.

begin.py         `flow`: the source of a flow
flow.py          `Flow`: steps, SLA, sink
keyed_flow.py    `KeyedFlow` and `WindowedFlow`: the steps with state
joins.py         keys and bounds of a join of two flows
graph.py         sources and steps as a graph
step_names.py    names of keyed steps, and how those of a checkpoint match
explain.py       the text of `Flow.explain`
start.py         from a flow to a running query; start_live.py: to a live one
claim.py         the checkpoint that a flow is started on
"""

"""What a user writes.

flow.py          `flow` and `Flow`: sources, steps, SLA, sink
keyed_flow.py    `KeyedFlow` and `WindowedFlow`: the steps with state
joins.py         what a join of two flows goes by
graph.py         sources and steps as a graph
explain.py       the text of `Flow.explain`
start.py         from a flow to a running query; start_live.py: to a live one
"""

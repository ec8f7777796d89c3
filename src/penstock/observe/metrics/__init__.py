"""Metrics of a running query, for what people already run.

catalog.py      the metrics: name, kind, unit, meaning, labels
totals.py       their values, from the query's moments
prometheus.py   the endpoint that Prometheus scrapes
epoch_trace.py  an epoch as a tree of spans
otel.py         metrics and traces for OpenTelemetry
otlp.py         exporters for OpenTelemetry, where the application has none
"""

"""Benchmarks: each is run by `penstock bench NAME` and writes one JSON report.

Sides that are compared run in one session, in turns, over the same input and into the same sink.
"""

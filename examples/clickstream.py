"""Clicks per user in windows of two seconds, with a latency SLA of one second.

Shows a flow as a function of its source, an SLA, hosts that follow the load, and what a running query tells.
Run it on this machine for 20 seconds: python examples/clickstream.py
"""

import sys
import tempfile

import penstock as ps


def clicks(events) -> ps.Flow:
    """Clicks per user and window. `events` has the columns arrival, key (the user) and value (the page)."""
    return (
        ps.flow(events, event_time="arrival", delay="1s")
        .select("arrival", user="key", page="value")
        .key_by("user", slots=32)
        .window(ps.tumbling("2s"))
        .aggregate(clicks=ps.count(), pages=ps.approx_distinct("page"))
        .sla(latency="1s", window="1s")
        .elastic(at_most=3)
    )


def main(seconds: float = 20) -> None:
    ps.session("clickstream", cores=6)
    closed = ps.collect()
    with tempfile.TemporaryDirectory() as checkpoint:
        flow = clicks(ps.rate(2_000, keys=500))
        query = flow.start(closed, checkpoint=checkpoint, hosts=1)
        query.await_termination(timeout=seconds)
        print(query.status)
        for epoch in query.progress[-1:]:
            print("latency of the last epoch:", epoch.latency)
        for entry in query.journal:
            print(entry.line())
        query.stop()
    print(f"{len(closed.rows())} windows were closed")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))

"""Examine: from counters of couriers and hosts to `Vitals`: rates, latencies, backlogs of a step."""

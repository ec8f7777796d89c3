"""Examine: turns counters of couriers and hosts into `Vitals`, a step's rates, latencies and backlogs."""

"""`penstock bench live`: Penstock's live mode compared with its peers, and the papers' experiments in live
mode.

Each part has a file of its own in `parts`. By default all parts are run, which takes about half an hour, or
six minutes when quick; else those named by `--part`. An existing report keeps its results of the other parts.
"""

from __future__ import annotations

from penstock_bench.live.parts import (
    burst,
    hotspots,
    latency,
    migration,
    ordered,
    sla,
    switch,
    transactional,
)
from penstock_bench.parts import Part, Parts

PARTS = {
    "latency": Part(latency.run, latency.ratios, latency.GOALS),
    "migration": Part(migration.run, migration.ratios, migration.GOALS),
    "transactional": Part(transactional.run, transactional.ratios, transactional.GOALS),
    "sla": Part(sla.run, sla.ratios, sla.GOALS),
    "switch": Part(switch.run, switch.ratios, switch.GOALS),
    "hotspots": Part(hotspots.run, hotspots.ratios, hotspots.GOALS),
    "burst": Part(burst.run, burst.ratios, burst.GOALS),
    "ordered": Part(ordered.run, ordered.ratios, ordered.GOALS),
}
_BENCH = Parts("live", PARTS)
GOALS = _BENCH.goals
run, report, merged = _BENCH.run, _BENCH.report, _BENCH.merged

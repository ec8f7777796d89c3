"""What `penstock bench burst` compares: ways to answer a burst.

The published names stand beside them: Sponge's figures 10 to 13 have the same sides.
"""

from __future__ import annotations

from typing import Literal, get_args

Side = Literal[
    "no_scaling",
    "new_hosts_30s",
    "new_hosts",
    "hosts_beforehand",
    "functions_migrating",
    "penstock",
    "overprovisioned",
    "routers",
    "routers_transients",
    "no_warm",
]

SIDES: tuple[Side, ...] = get_args(Side)
ONLY_SIMULATED: tuple[Side, ...] = ("routers", "routers_transients", "no_warm")
LIVE: tuple[Side, ...] = tuple(side for side in SIDES if side not in ONLY_SIMULATED)

TITLES: dict[Side, str] = {
    "no_scaling": "no scaling",
    "new_hosts_30s": "new hosts, 30 s",
    "new_hosts": "new hosts",
    "hosts_beforehand": "hosts beforehand",
    "functions_migrating": "functions, migrating",
    "penstock": "Penstock",
    "overprovisioned": "over-provisioned",
    "routers": "routers",
    "routers_transients": "routers, transients",
    "no_warm": "nothing kept warm",
}
"""For tables and pictures."""

MEANINGS: dict[Side, str] = {
    "no_scaling": "hosts and slots stay as they are (NoScaling)",
    "new_hosts_30s": "the switch adds hosts, each on a machine that takes 30 s to start (VMBase)",
    "new_hosts": "the switch adds hosts, which start as fast as they do here",
    "hosts_beforehand": "hosts for the burst are up and own nothing; slots and state move to them "
    "in the burst (VMInit)",
    "functions_migrating": "functions take over slots as hosts do: task and state stop, move over a "
    "function's 100 Mbit/s and go on; a step whose neighbour across an exchange is on functions "
    "stays (SFBase)",
    "penstock": "rows are redirected to functions kept warm, partial states merged (Sponge)",
    "overprovisioned": "hosts for the whole burst from the beginning (Over)",
    "routers": "as functions_migrating, but neighbouring steps may be on functions (SpongeRO)",
    "routers_transients": "the same without stopping to move tasks; state still moves (SpongeTO)",
    "no_warm": "Penstock with every function started cold (SpongeSnap)",
}
"""One sentence each, for the report."""

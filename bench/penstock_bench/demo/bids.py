"""The demo's bids, and its flow: for each auction their number, highest price and sum of prices.

Each bid is screened by a call that takes `SCREEN_S` (see `screening.py`). So the work of a host is waiting,
one host can take only some 90 bids/s, and more hosts help even on a machine with few cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

import penstock as ps
from penstock.live.sources.rate import Even
from penstock.model import SLA
from penstock.sim.pieces import Numbers
from penstock.sim.skews import Hotspot, Uniform
from penstock_bench.demo.phases import MOVES, Story
from penstock_bench.demo.screening import ScreenedBids
from penstock_bench.live.load import LedArrivals, LedContent, LedSource
from penstock_bench.workloads.nexmark.arriving_events import MixedEvents, scaled_down
from penstock_bench.workloads.shaped import KeyedRows

SLOTS = 64
_HOT_SHARE, _PARTS = 0.95, 4
"""In the hotspot, share of the bids that go to one part of the auctions, and number of parts."""


@dataclass(frozen=True)
class Bids:
    """The content of bids. Bidder and price are NEXMark's. The auction is chosen so that the hotspot comes
    and moves when the story says so."""

    story: Story
    auctions: int
    """Number of auctions, all of them open all the time."""
    seed: int = 1

    columns = "auction long, bidder long, price long"

    def rows(self, number: Numbers, t_us: Numbers) -> list[pa.Array]:
        hotspot = self.story.phase("hotspot")
        begin_us, end_us = round(hotspot.begin_s * 1e6), round(hotspot.end_s * 1e6)
        hot = (begin_us <= t_us) & (t_us < end_us)
        moving = Hotspot(_HOT_SHARE, _PARTS, every_s=(hotspot.end_s - hotspot.begin_s) / MOVES)
        even = KeyedRows(self.auctions, Uniform(), SLOTS, self.seed)
        uneven = KeyedRows(self.auctions, moving, SLOTS, self.seed)
        auction = np.empty(len(number), np.int64)
        auction[~hot] = even.chosen_keys(number[~hot], t_us[~hot])
        auction[hot] = uneven.chosen_keys(number[hot], t_us[hot] - begin_us)
        columns = {"bidder": "bidder", "price": "price"}
        bidder, price = MixedEvents({"bid": columns}, scaled_down(self.seed)).rows(number, t_us)
        return [pa.array(auction), bidder, price]


def source(story: Story, auctions: int, gate: Path, partitions: int = 2) -> LedSource:
    """The bids. They begin to arrive at the time in the file `gate`, with the warm-up."""
    arrivals = LedArrivals(story.arrivals, Even(story.rate / 4), story.warm_up_s)
    content = LedContent(Bids(story, auctions), story.warm_up_s)
    return LedSource(arrivals, content, partitions, gate=gate)


def flow(bids: LedSource, sla: SLA, at_least: int, at_most: int) -> ps.Flow:
    """The demo's flow, with an SLA and autoscaling."""
    screened = ps.flow(bids).key_by("auction", slots=SLOTS).process(ScreenedBids(), name="auctions")
    bounded = screened.sla(sla.latency_ms / 1000, sla.window_ms / 1000)
    # A burst needs hosts before half of the bound, the default, is reached.
    alert_s = max(1.0, sla.latency_ms / 8) / 1000
    return bounded.elastic(at_least=at_least, at_most=at_most, alert=alert_s)

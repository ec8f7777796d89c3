"""The events of any numbers, as Arrow tables: a vectorised version of the canonical generator.

Event n is a person, an auction or a bid by its place in its round of fifty. It depends only on the seed
and n. One thing differs from nexmark-flink, which adds the first person's id twice to bidders, so that
most bidders do not exist; here they are people of the stream.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.sim.skews import Zipf
from penstock_bench.workloads.draws import Draws, Floats, Numbers
from penstock_bench.workloads.nexmark import texts
from penstock_bench.workloads.nexmark.columns import SCHEMAS, Stream
from penstock_bench.workloads.nexmark.config import AUCTIONS, PEOPLE, ROUND, NexmarkConfig
from penstock_bench.workloads.nexmark.shapes import EventTimes

FIRST_ID = 1000
"""First id of people and of auctions: joins find matches even in small samples."""
_FIRST_CATEGORY, _CATEGORIES = 10, 5
_LEAD = 10
"""Number of future ids that events may already refer to, as if events were out of order."""
_CHANNELS = 10_000

_FIRST_NAMES = (
    *("Peter", "Paul", "Luke", "John", "Saul", "Vicky"),
    *("Kate", "Julie", "Sarah", "Deiter", "Walter"),
)
_LAST_NAMES = (
    "Shultz",
    "Abrams",
    "Spencer",
    "White",
    "Bartels",
    "Walton",
    "Smith",
    "Jones",
    "Noris",
)
_CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
)
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")


def events(config: NexmarkConfig, first: int, count: int) -> dict[Stream, pa.Table]:
    """The events first, first + 1, ... (count of them), in order of time.

    >>> made = events(NexmarkConfig(events=100), 0, 100)
    >>> {stream: table.num_rows for stream, table in made.items()}
    {'person': 2, 'auction': 6, 'bid': 92}
    """
    return events_of(config, np.arange(first, min(first + count, config.events), dtype=np.int64))


def events_of(config: NexmarkConfig, numbers: Numbers) -> dict[Stream, pa.Table]:
    """The events of these numbers, in this order."""
    place = numbers % ROUND
    person, bid = place < PEOPLE, place >= PEOPLE + AUCTIONS
    return {
        "person": _people(config, numbers[person]),
        "auction": _auctions(config, numbers[~person & ~bid]),
        "bid": _bids(config, numbers[bid]),
    }


def _people(config: NexmarkConfig, numbers: Numbers) -> pa.Table:
    seed, draws = config.seed, Draws(config.seed, numbers)
    name = _joined([_pick(_FIRST_NAMES, draws, "first"), _pick(_LAST_NAMES, draws, "last")], " ")
    mailbox, domain = (texts.words(seed, draws, n, what) for n, what in ((7, "box"), (5, "dom")))
    email = _joined([mailbox, _joined([domain, "com"], ".")], "@")
    card = _joined([_four_digits().take(draws.below(10_000, f"card{i}")) for i in range(4)], " ")
    city, state = _pick(_CITIES, draws, "city"), _pick(_STATES, draws, "state")
    used = 8 + sum(texts.lengths(text) for text in (name, email, card, city, state))
    extra = texts.filler(seed, draws, used, config.person_bytes)
    ids, times = FIRST_ID + _last_person(numbers), EventTimes(config).millis(numbers)
    return _table("person", [ids, name, email, card, city, state, _time(times), extra])


def _auctions(config: NexmarkConfig, numbers: Numbers) -> pa.Table:
    seed, draws, times = config.seed, Draws(config.seed, numbers), EventTimes(config)
    auction, happens = _last_auction(numbers), times.millis(numbers)
    hot = draws.below(config.hot_seller_ratio, "hot") > 0
    seller = np.where(hot, _hot_person(config, numbers, draws, 0), _person(config, numbers, draws))
    name, description = (texts.words(seed, draws, n, what) for n, what in ((20, "n"), (100, "d")))
    initial_bid = draws.price("initial")
    ahead = numbers + config.in_flight * ROUND // AUCTIONS
    horizon_ms = times.millis(ahead) - happens
    expires = 1 + draws.below(np.maximum(2 * horizon_ms, 1), "length") + happens
    if config.hot == "zipf":  # Hot auctions stay open to the end.
        end_ms = int(times.millis(np.array([config.events]))[0])
        expires = np.where(auction < config.hot_set, expires - happens + end_ms, expires)
    used = 48 + texts.lengths(name) + texts.lengths(description)
    extra = texts.filler(seed, draws, used, config.auction_bytes)
    reserve, category = initial_bid + draws.price("reserve"), draws.below(_CATEGORIES, "categ")
    before = [FIRST_ID + auction, name, description, initial_bid, reserve]
    after = [FIRST_ID + seller, _FIRST_CATEGORY + category, extra]
    return _table("auction", [*before, _time(happens), _time(expires), *after])


def _bids(config: NexmarkConfig, numbers: Numbers) -> pa.Table:
    draws = Draws(config.seed, numbers)
    hot = draws.below(config.hot_auction_ratio, "hot-a") > 0
    newest = _last_auction(numbers)
    oldest = np.maximum(newest - config.in_flight, 0)
    in_flight = oldest + draws.below(newest - oldest + 1 + _LEAD, "auction")
    auction = np.where(hot, _hot_auction(config, newest, draws), in_flight)
    hot = draws.below(config.hot_bidder_ratio, "hot-b") > 0
    bidder = np.where(hot, _hot_person(config, numbers, draws, 1), _person(config, numbers, draws))
    hot = draws.below(2, "hot-c") > 0
    channel = draws.below(_CHANNELS, "channel") + len(_HOT_CHANNELS)
    channel = pa.array(np.where(hot, draws.below(len(_HOT_CHANNELS), "famous"), channel))
    names, urls = _channels(config.seed)
    extra = texts.filler(config.seed, draws, np.full(len(numbers), 32), config.bid_bytes)
    happens = _time(EventTimes(config).millis(numbers))
    before = [FIRST_ID + auction, FIRST_ID + bidder, draws.price("price")]
    return _table("bid", [*before, names.take(channel), urls.take(channel), happens, extra])


def _last_person(numbers: Numbers) -> Numbers:
    """Index of the newest person at the time of these events."""
    return numbers // ROUND


def _last_auction(numbers: Numbers) -> Numbers:
    """Index of the newest auction at the time of these events (auctions or bids)."""
    of_round = np.minimum(numbers % ROUND - PEOPLE, AUCTIONS - 1)
    return numbers // ROUND * AUCTIONS + of_round


def _person(config: NexmarkConfig, numbers: Numbers, draws: Draws) -> Numbers:
    people = _last_person(numbers) + 1
    active = np.minimum(people, config.active_people)
    return people - active + draws.below(active + _LEAD, "person")


def _hot_person(config: NexmarkConfig, numbers: Numbers, draws: Draws, which: int) -> Numbers:
    """Hot sellers if `which` is 0, hot bidders if it is 1; no person is both."""
    newest = _last_person(numbers)
    if config.hot == "canonical":
        return newest // config.hot_batch * config.hot_batch + which
    return (2 * _hot_rank(config, draws.unit("zipf-p")) + which) % (newest + 2)


def _hot_auction(config: NexmarkConfig, newest: Numbers, draws: Draws) -> Numbers:
    if config.hot == "canonical":
        return newest // config.hot_batch * config.hot_batch
    return _hot_rank(config, draws.unit("zipf-a")) % (newest + 1)


def _hot_rank(config: NexmarkConfig, unit: Floats) -> Numbers:
    return Zipf(config.zipf_exponent).ranks(config.hot_set, unit)


@lru_cache(maxsize=8)
def _channels(seed: int) -> tuple[pa.Array, pa.Array]:
    """Names and URLs of channels: first the well-known ones, whose URL lacks the channel's id."""
    number = np.arange(_CHANNELS + len(_HOT_CHANNELS)) - len(_HOT_CHANNELS)
    draws = Draws(seed, number)
    parts = [texts.words(seed, draws, 5, what, gaps="_") for what in ("dir1", "dir2", "dir3")]
    has_id = (number >= 0) & (draws.below(10, "tells") > 0)
    ids = [f"&channel_id={_reversed_bits(max(int(n), 0))}" for n in number]
    query = [f"item.htm?query=1{id if has else ''}" for id, has in zip(ids, has_id, strict=True)]
    urls = _joined(["https://www.nexmark.com", *parts, pa.array(query, pa.string())], "/")
    names = [*_HOT_CHANNELS, *(f"channel-{i}" for i in range(_CHANNELS))]
    return pa.array(names, pa.string()), urls


def _reversed_bits(n: int) -> int:
    """The absolute value of the 32 bits in reverse order, as a signed integer.

    >>> _reversed_bits(1), _reversed_bits(2)
    (2147483648, 1073741824)
    """
    backwards = int(f"{n:032b}"[::-1], 2)
    return abs(backwards - (1 << 32)) if backwards >= 1 << 31 else backwards


@cache
def _four_digits() -> pa.Array:
    return pa.array([f"{i:04d}" for i in range(10_000)], pa.string())


def _pick(choices: tuple[str, ...], draws: Draws, what: str) -> pa.Array:
    return pa.array(choices, pa.string()).take(pa.array(draws.below(len(choices), what)))


def _joined(parts: list[pa.Array | str], between: str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, between)


def _time(millis: Numbers) -> pa.Array:
    return pa.array(millis * 1000).cast(pa.timestamp("us", tz="UTC"))


def _table(stream: Stream, columns: list[pa.Array | Numbers]) -> pa.Table:
    return pa.table([pa.array(column) for column in columns], schema=SCHEMAS[stream])

"""Arrival times of orders by stock: a day at the exchange, by seed.

A power law gives each stock its exact number of orders. Each order's millisecond is drawn by how busy
the market and the stock are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.errors import SettingError
from penstock.sim.trace import Trace
from penstock.sim.workload import Workload
from penstock.state.keys.codec import int_keys, slots_of

Floats = npt.NDArray[np.float64]

STEP_MS = 100
"""Milliseconds of a time slot: each has a weight, and orders arrive evenly within it."""
SESSION_MS = 2 * 3600 * 1000
DAY_MS = 2 * SESSION_MS
"""Milliseconds of a day: two sessions without a break."""

_STEPS = DAY_MS // STEP_MS
_WAVES = ((2.0, 0.20), (15.0, 0.25), (120.0, 0.25), (900.0, 0.15))
"""Waves of the market's activity: (seconds, size)."""
_MARKET_BURSTS = 48
_STOCK_BURSTS = 4.0
"""Bursts per day of the whole market, and of a stock on average."""
_MOST_OF_A_STOCK = 0.06
"""Highest rate of a stock's burst, as a share of the market's average rate."""


def _market(random: np.random.Generator) -> Floats:
    """Activity of the whole market without its openings, 1 on average. It is high at both ends of a session,
    most of all near the close of the day, with waves and bursts of seconds to minutes."""
    mood = np.zeros(_STEPS)
    for seconds, size in _WAVES:
        knots = np.arange(0, DAY_MS / 1000 + 2 * seconds, seconds)
        times = np.arange(_STEPS) * (STEP_MS / 1000)
        mood += np.interp(times, knots, random.normal(0.0, size, len(knots)))
    busy = np.concatenate([_session(2.0, 0.4), _session(1.0, 2.0)]) * np.exp(mood)
    heights = random.lognormal(0.3, 0.5, _MARKET_BURSTS)
    busy *= 1.0 + _bursts(random, heights)
    return np.asarray(busy / busy.mean(), np.float64)


def _of_stock(random: np.random.Generator, weight: float) -> Floats:
    """Activity of a stock relative to the market: 1, and more in its own bursts. `weight` is its share of
    all orders."""
    heights = random.lognormal(2.0, 0.7, random.poisson(_STOCK_BURSTS))
    return 1.0 + _bursts(random, np.minimum(heights, _MOST_OF_A_STOCK / weight))


def _opening(random: np.random.Generator) -> Floats:
    """Activity in the first seconds of a session: nearly all in the first one, then a fast decay."""
    seconds = np.arange(0, 10, STEP_MS / 1000)
    shape = np.where(seconds < 1.0, 1.0, np.exp(-(seconds - 1.0) / 0.25) * 0.5)
    return np.asarray(shape * random.uniform(0.9, 1.1, len(shape)), np.float64)


def _session(after_open: float, before_close: float) -> Floats:
    """Activity of a session in the shape of a U, higher after the opening and before the close."""
    x = np.linspace(0.0, 1.0, _STEPS // 2)
    return 1.0 + after_open * np.exp(-x / 0.08) + before_close * np.exp((x - 1.0) / 0.12)


def _bursts(random: np.random.Generator, heights: Floats) -> Floats:
    """Activity added by bursts of these heights: each starts at once and decays in seconds to minutes."""
    added = np.zeros(_STEPS)
    starts = random.integers(0, _STEPS, len(heights))
    fades = np.clip(random.lognormal(np.log(12.0), 1.0, len(heights)), 1.0, 120.0)
    for start, height, fade_s in zip(starts, heights, fades, strict=True):
        fade = fade_s * 1000 / STEP_MS
        length = min(int(5 * fade), _STEPS - start)
        added[start : start + length] += height * np.exp(-np.arange(length) / fade)
    return added


STOCKS = 1_156
ORDERS = 14_854_215
FIRST_STOCK = 600_000
"""Number of the first stock; stocks are numbered by their orders, most first."""

_EXPONENT = 0.58
"""The power law's exponent: the busiest stock has 2.3 % of all orders, the first 11 have 10.9 %."""
_OPENING = (70_000, 74_500)
"""Range of the orders that an opening adds to a session's first second."""
_STOCK_BITS = 11
_SERVICE_RATE = 200.0
"""Orders per second of a host: about 8 hosts are then enough on average."""

Numbers = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Day:
    """All orders of a day, in order of arrival."""

    arrival_ms: npt.NDArray[np.int32]
    """Milliseconds since the first opening; the second session follows the first without a break."""
    stock: npt.NDArray[np.int16]
    """Index of each order's stock, 0 for the busiest; its number is `FIRST_STOCK` higher."""

    def __len__(self) -> int:
        return len(self.stock)

    def between(self, start_ms: int, end_ms: int) -> slice:
        """The orders that arrive from `start_ms` (inclusive) to `end_ms` (exclusive).

        >>> some = Day(np.array([0, 5, 5, 9], np.int32), np.zeros(4, np.int16))
        >>> some.between(1, 9)
        slice(1, 3, None)
        """
        first, end = np.searchsorted(self.arrival_ms, [start_ms, end_ms])
        return slice(int(first), int(end))


def day(seed: int = 1) -> Day:
    """Generate the orders of a day. It takes a few seconds and, meanwhile, about 350 MB."""
    keys = np.empty(ORDERS, np.int64)
    done = 0
    for stock, arrivals_ms in _by_stock(seed):
        keys[done : done + len(arrivals_ms)] = (arrivals_ms << _STOCK_BITS) | stock
        done += len(arrivals_ms)
    keys.sort()
    stocks = (keys & ((1 << _STOCK_BITS) - 1)).astype(np.int16)
    return Day((keys >> _STOCK_BITS).astype(np.int32), stocks)


def slot_trace(slots: int = 64, delta_ms: int = 100, seed: int = 1) -> Counts:
    """Number of orders in each time slot, for each slot of a step that is keyed by stock.

    The array's axes are time slots and slots. The orders are those of `day(seed)`.
    """
    if delta_ms < 1 or DAY_MS % delta_ms:
        raise SettingError(
            f"a day cannot be cut in time slots of {delta_ms} ms",
            hint="use a divisor of 4 hours, such as 20, 100 or 500 ms",
        )
    slot = slots_of_stocks(slots)
    counts = np.zeros((slots, DAY_MS // delta_ms), np.int32)
    for stock, arrivals_ms in _by_stock(seed):
        counts[slot[stock]] += np.bincount(arrivals_ms // delta_ms, minlength=counts.shape[1])
    return np.ascontiguousarray(counts.T)


def workload(slots: int, delta_ms: float, seed: int) -> Workload:
    """The day as the simulator's workload `exchange`."""
    return Workload(Trace(delta_ms, slot_trace(slots, round(delta_ms), seed)), _SERVICE_RATE)


def slots_of_stocks(slots: int) -> npt.NDArray[np.int32]:
    """The slot of each stock, as couriers compute it for a key column of type long.

    >>> slots_of_stocks(64)[:4].tolist()
    [39, 22, 47, 26]
    """
    numbers = np.arange(FIRST_STOCK, FIRST_STOCK + STOCKS, dtype=np.int64)
    return np.asarray(slots_of(int_keys(numbers).hashes, slots), np.int32)


def orders_of_stocks() -> Numbers:
    """Number of orders of each stock in a day.

    >>> orders = orders_of_stocks()
    >>> orders.sum().item(), orders[:3].tolist()
    (14854215, [335921, 224719, 177626])
    """
    exact = _weights() * ORDERS
    orders = np.floor(exact).astype(np.int64)
    # The stocks that lost most by rounding get the rest.
    short = np.argsort(orders - exact, kind="stable")[: ORDERS - orders.sum()]
    orders[short] += 1
    return orders


def _weights() -> Floats:
    weights = np.arange(1, STOCKS + 1, dtype=np.float64) ** -_EXPONENT
    return np.asarray(weights / weights.sum(), np.float64)


def _by_stock(seed: int) -> Iterator[tuple[int, Numbers]]:
    """Each stock with the arrival times of its orders, in milliseconds, unsorted."""
    random = np.random.default_rng([seed, STOCKS])
    market, weights = _market(random), _weights()
    openings = []
    for start_ms in (0, SESSION_MS):
        busy = _opening(random)
        in_first_second = busy[: 1000 // STEP_MS].sum() / busy.sum()
        orders = int(random.integers(*_OPENING) / in_first_second)
        openings.append((start_ms, busy, random.multinomial(orders, weights)))
    for stock, orders in enumerate(orders_of_stocks().tolist()):
        random = np.random.default_rng([seed, stock])
        parts = [start + _arrivals(random, busy, of[stock]) for start, busy, of in openings]
        rest = orders - sum(map(len, parts))
        busy = market * _of_stock(random, weights[stock])
        yield stock, np.concatenate([*parts, _arrivals(random, busy, rest)])


def _arrivals(random: np.random.Generator, busy: Floats, count: int) -> Numbers:
    """Times of `count` orders, in milliseconds, over time slots with the activity `busy`."""
    reached = np.concatenate([[0.0], np.cumsum(busy)])
    # Uniform draws in ascending order, for which `interp` is fast.
    drawn = np.cumsum(random.exponential(size=count + 1))
    steps = np.interp(drawn[:-1] / drawn[-1] * reached[-1], reached, np.arange(len(reached)))
    last = len(busy) * STEP_MS - 1
    return np.asarray(np.minimum((steps * STEP_MS).astype(np.int64), last), np.int64)

"""Unusual events: nulls anywhere, ties, times on the edges of windows."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

PRICES = (1, 2, 9_999, 10_000, 999_999, 1_000_000, 1_101_321, 1_101_322, 5_000_000, 55_066_079)
TEXTS = ("", "c", "cc a", "x", '"q"', "é\n", "\\", "\t\u0001", "😀c")
URLS = (
    "https://www.nexmark.com/a/b/c/item.htm?query=1",
    "https://x.com/a/b&channel_id=17&more=1",
    "channel_id=",
    "?channel_id=5",
    "////",
    "",
)
CHANNELS = ("Apple", "google", "FACEBOOK", "Baidu", "channel-3", "")


class OddEvents:
    """Writes a folder of unusual events, which depend only on the seed."""

    def __init__(self, seed: int, base: datetime, seconds: int) -> None:
        self._random = random.Random(seed)
        self._base, self._seconds = base, seconds

    def write(self, folder: Path, bids: int = 600) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lines(folder / "person.ndjson", (self._person(n / 60) for n in range(60)))
        auctions = bids // 5
        self._lines(
            folder / "auction.ndjson", (self._auction(n, n / auctions) for n in range(auctions))
        )
        self._lines(folder / "bid.ndjson", (self._bid(auctions, n / bids) for n in range(bids)))

    def _person(self, along: float) -> dict[str, Any]:
        pick = self._random.choice
        return {
            "id": self._odd(self._random.randint(0, 12)),
            "name": self._odd(pick("ab")),
            "email_address": self._odd(pick(TEXTS)),
            "credit_card": self._odd(pick(TEXTS)),
            "city": self._odd(pick(TEXTS)),
            "state": self._odd(pick(["OR", "ID", "CA", "WA"])),
            "date_time": self._iso(self._time(along)),
            "extra": self._odd(pick(TEXTS)),
        }

    def _auction(self, number: int, along: float) -> dict[str, Any]:
        pick, opened = self._random.choice, self._time(along)
        return {
            "id": self._odd(number),
            "item_name": self._odd(pick(TEXTS)),
            "description": self._odd(pick(TEXTS)),
            "initial_bid": self._odd(pick(PRICES)),
            "reserve": self._odd(pick(PRICES)),
            "date_time": self._iso(opened),
            "expires": self._iso(opened + timedelta(seconds=pick([-1, 0, 1, 5, 20, 60]))),
            "seller": self._odd(self._random.randint(0, 12)),
            "category": self._odd(pick([10, 10, 11])),
            "extra": self._odd(pick(TEXTS)),
        }

    def _bid(self, auctions: int, along: float) -> dict[str, Any]:
        pick = self._random.choice
        return {
            "auction": self._odd(self._random.randint(0, auctions)),
            "bidder": self._odd(self._random.randint(0, 6)),
            "price": self._odd(pick(PRICES)),
            "channel": self._odd(pick(CHANNELS)),
            "url": self._odd(pick(URLS)),
            "date_time": self._iso(self._time(along)),
            "extra": self._odd(pick(TEXTS)),
        }

    def _odd(self, value: T) -> T | None:
        return None if self._random.random() < 0.05 else value

    def _time(self, along: float) -> datetime:
        behind = self._random.choice([0, 0, 0, self._random.randint(0, 15)])
        time = self._base + timedelta(seconds=along * self._seconds - behind)
        cut = self._random.choice([1_000_000, 1_000, 1])
        return time.replace(microsecond=time.microsecond // cut * cut)

    def _iso(self, time: datetime) -> str | None:
        return self._odd(time.isoformat())

    @staticmethod
    def _lines(file: Path, events: Iterable[dict[str, Any]]) -> None:
        file.write_text("".join(json.dumps(event) + "\n" for event in events))


def odd_events(folder: Path, seed: int) -> Path:
    """Write unusual events around the start of 1970 or in 2015, over half a minute to several minutes."""
    base = datetime(1969, 12, 31, 23, 59, 30, tzinfo=UTC)
    if seed % 2:
        base = datetime(2015, 7, 15, 6, 58, tzinfo=UTC)
    OddEvents(seed, base, (30, 100, 400)[seed % 3]).write(folder)
    return folder

"""The folder of a run: its sink, its orders, and the files its processes communicate by."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock_bench.chaos.orders import OrderBook
from penstock_bench.chaos.schedule import ChaosPlan
from penstock_bench.live.latency import Began

MARK = "PENSTOCK_CHAOS"
"""Environment variable that marks the processes of a run, so that they are found even without their
parents."""


@dataclass(frozen=True)
class Bearings:
    """Addresses and settings that the driver of a run needs."""

    checkpoint: str
    master: str | None = None
    """URL of Spark's master; None for local mode."""
    servers: str | None = None
    """Bootstrap servers of the Kafka broker; None if the source generates the rows itself."""
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ChaosArena:
    """The folder of one run."""

    root: Path

    @property
    def sink(self) -> Path:
        return self.root / "sink"

    @property
    def book(self) -> OrderBook:
        return OrderBook(str(self.root / "orders"))

    def open(self, plan: ChaosPlan, bearings: Bearings) -> None:
        """Prepare the folder for a run."""
        self.book.open()
        (self.root / "commands").mkdir()
        self._put("plan.json", asdict(plan))
        self._put("bearings.json", asdict(bearings))

    @property
    def bearings(self) -> Bearings:
        return Bearings(**self._read("bearings.json") or {})

    @property
    def plan(self) -> ChaosPlan:
        facts = self._read("plan.json") or {}
        return ChaosPlan(**facts | {"allows": tuple(facts["allows"])})

    # -- written by the driver

    def note(self, file: str, **facts: Any) -> None:
        """Append a line to a file, with the current time."""
        line = json.dumps({"at_s": time.time(), **facts}).encode() + b"\n"
        with (self.root / f"{file}.jsonl").open("ab") as out:
            out.write(line)

    def notes(self, file: str) -> list[dict[str, Any]]:
        """All notes in a file."""
        with suppress(FileNotFoundError):
            return [json.loads(line) for line in (self.root / f"{file}.jsonl").open("rb")]
        return []

    def newest_s(self, file: str) -> float:
        """Time of the last note in a file, in seconds since 1970; 0 if there is none."""
        try:
            return (self.root / f"{file}.jsonl").stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def write_hosts(self, hosts: dict[str, int]) -> None:
        self._put("hosts.json", {"pid": os.getpid(), "hosts": hosts})

    @property
    def hosts(self) -> dict[str, int]:
        """Running hosts -> process ids, as last written by the driver."""
        return dict((self._read("hosts.json") or {}).get("hosts", {}))

    # -- written by the producer

    def write_began(self, began: Began) -> None:
        self._put("began.json", asdict(began))

    @property
    def began(self) -> Began | None:
        """Start of the load; None if it has not begun, or if the source generates the rows itself."""
        facts = self._read("began.json")
        return None if facts is None else Began(**facts)

    # -- written by the supervisor

    def command(self, number: int, pick: int) -> None:
        """Ask the driver to move slots; `pick` seeds the choice of slots and host."""
        self._put(f"commands/{number}.json", {"pick": pick})

    def commands(self) -> Iterator[int]:
        """Take the commands written since the last call."""
        for file in sorted((self.root / "commands").glob("*.json")):
            yield json.loads(file.read_bytes())["pick"]
            file.unlink()

    def stop(self) -> None:
        (self.root / "stop").touch()

    @property
    def stopped(self) -> bool:
        """Whether the run is over, or its folder has been removed."""
        return (self.root / "stop").exists() or not self.root.exists()

    def _put(self, name: str, facts: dict[str, Any]) -> None:
        new = (self.root / name).with_suffix(".new")
        new.write_text(json.dumps(facts))
        new.rename(self.root / name)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            facts: dict[str, Any] = json.loads((self.root / name).read_bytes())
        except FileNotFoundError:
            return None
        return facts

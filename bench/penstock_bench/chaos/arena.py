"""The folder of a run: its sink, its orders, and what its processes tell each other."""

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
"""The environment variable by which processes of a run are told, whatever became of their parents."""


@dataclass(frozen=True)
class Bearings:
    """What the driver of a run must know of what it stands on."""

    checkpoint: str
    master: str | None = None
    """Spark's master; None: local."""
    servers: str | None = None
    """The broker in front; None: rows are made up where they are read."""
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ChaosArena:
    """One run's folder."""

    root: Path

    @property
    def sink(self) -> Path:
        return self.root / "sink"

    @property
    def book(self) -> OrderBook:
        return OrderBook(str(self.root / "orders"))

    def open(self, plan: ChaosPlan, bearings: Bearings) -> None:
        """Make the folder ready for a run."""
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

    # -- the driver tells

    def note(self, file: str, **facts: Any) -> None:
        """Append a line to a file; when it happened is added."""
        line = json.dumps({"at_s": time.time(), **facts}).encode() + b"\n"
        with (self.root / f"{file}.jsonl").open("ab") as out:
            out.write(line)

    def notes(self, file: str) -> list[dict[str, Any]]:
        """What was noted in a file."""
        with suppress(FileNotFoundError):
            return [json.loads(one) for one in (self.root / f"{file}.jsonl").open("rb")]
        return []

    def newest_s(self, file: str) -> float:
        """When something was last noted in a file; 0 if nothing was."""
        try:
            return (self.root / f"{file}.jsonl").stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def tell_hosts(self, hosts: dict[str, int]) -> None:
        self._put("hosts.json", {"pid": os.getpid(), "hosts": hosts})

    @property
    def hosts(self) -> dict[str, int]:
        """The hosts that are up -> their processes, as the driver told them last."""
        return dict((self._read("hosts.json") or {}).get("hosts", {}))

    # -- whoever sends rows tells

    def tell_began(self, began: Began) -> None:
        self._put("began.json", asdict(began))

    @property
    def began(self) -> Began | None:
        """When the load began, if it comes from outside and has."""
        facts = self._read("began.json")
        return None if facts is None else Began(**facts)

    # -- the supervisor tells

    def command(self, number: int, pick: int) -> None:
        """Ask for slots to change hands, as a random number has it."""
        self._put(f"commands/{number}.json", {"pick": pick})

    def commands(self) -> Iterator[int]:
        """Take what was asked for since this was last called."""
        for file in sorted((self.root / "commands").glob("*.json")):
            yield json.loads(file.read_bytes())["pick"]
            file.unlink()

    def stop(self) -> None:
        (self.root / "stop").touch()

    @property
    def stopped(self) -> bool:
        """Whether the run is over; also if the folder is gone."""
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

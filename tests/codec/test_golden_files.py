"""Files that earlier releases wrote are read as they were meant, and are written so that those read them.

`tests/data/checkpoint-format-2` was written by the last release without the codec.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import codec
from penstock.control.diagnose.outlook import Outlook
from penstock.control.journal.entry import Entry
from penstock.control.money import Money
from penstock.control.treat.decision import Treatment
from penstock.model import DeadLetter, HostId
from penstock.plan import watermarks
from penstock.plan.epoch import RouteTable
from penstock.plan.placement import Placement, stored_placements
from penstock.plan.watermarks import Partition
from penstock.state.store.manifest import checked, pack_slots
from penstock.state.store.store import DeltaRef, Layout, Manifest, SegmentRef, StepLayout, Store

OLD = Path(__file__).parent.parent / "data" / "checkpoint-format-2"
A, B = HostId("sum/0"), HostId("sum/1")

ROUTES = RouteTable((A, B), np.array([0, 0, 1, 1, 0, 1], np.int32))
PLACEMENTS = [
    Placement((0, 1, 4), A, 3, "move", B, A),
    Placement((2, 3, 5), B, -1, "start", None, A),
]
KNOWN = {(0, "p1"): Partition(900, 4_000), (1, ""): Partition(0, 5)}
RUN = SegmentRef(
    "sum", "runs/sum/000000000005-ab12-0.arrow", 40, 4096, 77, pack_slots([0, 1, 5]), 3, 5
)
SNAPSHOT = SegmentRef("sum", "snapshots/sum/000000000004-ab12-2.arrow", 9, 1024, 78, "20", 1, 4)
LAYOUT = Layout(5, "ab12", {"sum": StepLayout({2: SNAPSHOT}, (RUN,))})
MANIFEST = Manifest(
    epoch=7,
    run=1,
    base=5,
    layout=LAYOUT.file,
    deltas=(
        DeltaRef("sum", "sum/0", "deltas/sum/000000000007-1-sum-0-cd.arrow", 3, 512, 99, "88"),
        DeltaRef("sum", "sum/1", "deltas/sum/000000000007-1-sum-1-cd.arrow", 1, 400),
    ),
    routes={"sum": codec.to_plain(ROUTES)},
    watermarks={"sum": 1_750_000_000_000, "größe": None},
    rows=4,
    sealed_at_ms=1_750_000_000_123,
    placements={"sum": [placement.as_stored() for placement in PLACEMENTS]},
    event_times=watermarks.known_rows(KNOWN),
)
JOURNAL = [
    Entry(
        1_750_000_000_250.0,
        7,
        "sum",
        "decided",
        "scale out – 1 host",
        {
            "treatments": [Treatment("scale_out", (0, 1, 4), A, HostId("new/1"), "severe").facts()],
            "now": Outlook(2, float("nan"), float("inf")).facts(),
            "expected": Outlook(3, 0.41237, 25.04).facts(),
            "money": Money(0.0175, 0.00421234567).facts(),
            "hosts": [
                {
                    "host": "sum/0", "health": "severe", "slots": 3, "rate": 10.5,
                    "service_rate": None, "latency_ms": 1e300, "projected_ms": None,
                }
            ],
        },
    ),
    Entry(12.0, None, "sum", "setting", "x", {}),
]  # fmt: skip
FLOW = {
    "format": 2,
    "steps": [
        {
            "id": "sum", "slots": 6, "keys": [["user", "int64 or null"]], "key_schema": "AAA=",
            "state": [["slot", "int32"], ["total", "double"]],
        }
    ],
    "id": "0123456789abcdef",
}  # fmt: skip
CONTROL = {"location": "grpc://127.0.0.1:4711", "token": "t", "pid": 17}
LETTER = DeadLetter("sum", "user=é", '{"user": "é", "n": null}', 'ValueError: "x"\nno')


@pytest.fixture
def old(tmp_path: Path) -> Store:
    return Store(str(shutil.copytree(OLD, tmp_path / "old")))


def test_files_of_earlier_releases_are_read(old: Store) -> None:
    manifest = old.read_manifest(7)
    assert manifest is not None
    assert checked(manifest) == checked(MANIFEST)
    routes = codec.from_plain(manifest.routes["sum"], RouteTable)
    assert (routes.hosts, routes.owner.tolist()) == (ROUTES.hosts, ROUTES.owner.tolist())
    assert routes.owner.dtype == np.int32
    assert stored_placements(manifest.placements["sum"]) == PLACEMENTS
    assert watermarks.known_from(manifest.event_times) == KNOWN
    assert old.read_layout(manifest.layout) == LAYOUT
    assert old.journal_entries(Entry) == JOURNAL
    assert old.read_flow() == FLOW | {"closing": 8}
    assert old.read_control() == CONTROL


def test_files_are_written_as_earlier_releases_did(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write_manifest(MANIFEST)
    store.write_layout(LAYOUT)
    store.write_journal("000000000001-0", JOURNAL)
    store.write_flow(FLOW)
    store.begin_closing(8)
    store.write_control(CONTROL)
    store.write_dead_letters(7, [LETTER])
    names = [path.relative_to(OLD) for path in OLD.rglob("*.json*")]
    assert len(names) == 6
    for name in names:
        before, now = (folder / name for folder in (OLD, tmp_path))
        assert _values(now) == _values(before), name
        if name.parts[0] in ("manifests", "layouts"):
            assert now.read_bytes() == before.read_bytes(), "earlier releases check it as a whole"


def _values(file: Path) -> Any:
    """As Python's own reader has them, and with keys in their order."""
    text = file.read_text()
    lines = text.splitlines() if file.suffix == ".jsonl" else [text]
    return [json.dumps(json.loads(line)) for line in lines]

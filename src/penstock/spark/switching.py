"""A checkpoint of one mode is continued in the other: where its sources are read from, told the other way.

In micro-batches Spark's log says how far sources were read, in live mode Penstock's manifest does. State,
versions and their numbers are the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from penstock.errors import CheckpointError, SettingError
from penstock.live.sinks.transactional import TransactionalSink, parcels_in
from penstock.live.sources.source import LiveSource
from penstock.spark.checkpoint import Folder, OffsetLog
from penstock.spark.sinks import Sink, live_sink
from penstock.state.store.store import Store


def to_live(folder: Folder, store: Store, sources: Sequence[LiveSource]) -> dict[str, Any]:
    """Where a live flow goes on that ran in micro-batches: facts for its `flow.json`.

    The newest manifest counts, also if Spark was not told of its epoch any more: the sink has it.
    """
    version = max(store.epochs(), default=-1)
    if version < 0:
        return {}
    offsets = OffsetLog(folder).offsets(version)
    if offsets is None or store.damage(version):
        raise SettingError(
            f"{folder.spark} cannot be continued in live mode: version {version} is damaged, or "
            "Spark's log of it is gone",
            hint="continue it in micro-batches, and stop it in good order",
        )
    return {
        "positions": {
            str(number): source.positions_at(json.loads(offsets[number]))
            for number, source in enumerate(sources)
            if offsets[number] != "-"
        }
    }


def to_micro(
    folder: Folder, store: Store, sources: Sequence[LiveSource], sink: Sink, flow_id: str
) -> dict[str, Any]:
    """Tell Spark's log where a flow goes on that ran live: facts for its `flow.json`."""
    version = max(store.epochs(), default=-1)
    if version < 0:
        return {}
    if parcels_in(store.files):
        TransactionalSink(live_sink(sink), store.place, flow_id).rewind(version)
    manifest = store.chain(version).manifest
    assert manifest.positions is not None
    offsets = [
        json.dumps(source.offset_at(manifest.positions[str(number)]), separators=(",", ":"))
        for number, source in enumerate(sources)
    ]
    OffsetLog(folder).begin_after(version, offsets, manifest.sealed_at_ms)
    return {}


def must_be_live(sources: Sequence[LiveSource | None], uri: str) -> list[LiveSource]:
    """The sources of a flow that was run live; refuses those that couriers cannot have read."""
    found = [source for source in sources if source is not None]
    if len(found) < len(sources):
        raise CheckpointError(
            f"{uri} was written in live mode, and the flow begins with a DataFrame",
            hint="begin it with the same ps.kafka(...), ps.rate(...) or ps.source(...) as before",
        )
    return found

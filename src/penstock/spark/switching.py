"""Continuing a checkpoint of one mode in the other, by converting the positions of its sources.

In micro-batches the positions are in Spark's log, in live mode in Penstock's manifest. State and versions are
the same in both modes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from penstock.errors import CheckpointError, SettingError
from penstock.live.sinks.transactional import TransactionalSink, parcels_in
from penstock.live.sources.source import LiveSource
from penstock.spark.checkpoint import Folder, OffsetLog, catch_up
from penstock.spark.sinks import Sink, Writer, live_sink
from penstock.state.store.store import Store


def to_live(
    folder: Folder, store: Store, sources: Sequence[LiveSource], keyed: bool
) -> dict[str, Any]:
    """Positions from which a flow that ran in micro-batches continues live, for its `flow.json`.

    They are those of the newest manifest, even if Spark has not committed that epoch, since the sink has it.
    """
    if not keyed:
        catch_up(folder, store)
    version = max(store.epochs(), default=-1)
    if version < 0:
        return {}
    offsets = OffsetLog(folder).offsets(version)
    if offsets is None or store.damage(version):
        raise SettingError(
            f"{folder.spark} cannot be continued in live mode: version {version} is damaged, or "
            "missing in Spark's log",
            hint="continue it in micro-batches, stop it with query.stop(), and then start it live",
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
    """Write the positions of a flow that ran live to Spark's log. Returns additions to its `flow.json`."""
    version = max(store.epochs(), default=-1)
    if parcels_in(store.files):
        TransactionalSink(live_sink(sink), store.place, flow_id).rewind(version)
    elif isinstance(sink, Writer):
        with suppress(SettingError):  # then no courier has written to it
            live_sink(sink).rewind(version)
    if version < 0:
        return {}
    manifest = store.chain(version).manifest
    assert manifest.positions is not None
    offsets = [
        json.dumps(source.offset_at(manifest.positions[str(number)]), separators=(",", ":"))
        for number, source in enumerate(sources)
    ]
    OffsetLog(folder).begin_after(version, offsets, manifest.sealed_at_ms)
    return {}


def must_be_live(sources: Sequence[LiveSource | None], uri: str) -> list[LiveSource]:
    """The sources of a flow that ran live. Raises a `CheckpointError` if one of them is a DataFrame."""
    live = [source for source in sources if source is not None]
    if len(live) < len(sources):
        raise CheckpointError(
            f"{uri} was written in live mode, but a source of the flow is a DataFrame",
            hint="use the same ps.kafka(...), ps.rate(...) or ps.source(...) as before",
        )
    return live

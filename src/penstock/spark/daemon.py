"""Spark's Python daemon with everything loaded that hosts and couriers need.

Spark forks its Python workers from a daemon. One that has not loaded Arrow, numba and Penstock leaves
that to each worker: a second or two of a core before a host registers, and again for the couriers
after an epoch that failed, since a worker does not outlive a failed task. Forked from this one they
begin at once, and share the memory of what was loaded.

Modules are loaded and compiled kernels called once: no thread, connection or file is opened before
the fork.
"""

from __future__ import annotations

import sys
import zipimport
from contextlib import suppress

import pyarrow.compute
import pyarrow.flight
import pyspark.worker
from pyspark.daemon import manager

import penstock.courier.courier
import penstock.host.main
import penstock.live.sinks.kafka
import penstock.live.sources.kafka
import penstock.live.task
import penstock.offload.courier.roads
from penstock.host.rehearsal import rehearse

with suppress(ImportError):
    import confluent_kafka  # noqa: F401 - for couriers of live flows, if it is installed

LOADED = (
    pyarrow.compute,
    pyarrow.flight,
    pyspark.worker,
    penstock.courier,
    penstock.host,
    penstock.live,
    penstock.offload,
)


def forget_archives() -> None:
    """Let go of the importers of Spark's zip file, one for each of its packages.

    With its first task a worker invalidates all importers, and those of a zip file read its whole
    directory again, each of them: a quarter of a second of a core. They are made anew, from what is
    cached, should anything more be imported.
    """
    for place, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            del sys.path_importer_cache[place]


if __name__ == "__main__":
    rehearse()
    forget_archives()
    manager()

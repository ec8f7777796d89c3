"""Spark's Python daemon, with all modules loaded that hosts and couriers need.

Spark forks its Python workers from a daemon. If the daemon has not loaded Arrow, numba and Penstock, each
worker must do so. That takes a second or two of a core before a host registers, and again for couriers after
a failed epoch, since a worker ends with a failed task. Workers that are forked from this daemon start at
once, and share the memory of the loaded modules.

This only loads modules and calls each compiled kernel once. It opens no thread, connection or file before the
fork.
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
    """Drop the importers of Spark's zip file, one for each of its packages.

    With its first task a worker invalidates all importers. Those of a zip file then each read its whole
    directory again, which takes a quarter of a second of a core. Later imports create them again from a
    cache.
    """
    for place, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            del sys.path_importer_cache[place]


if __name__ == "__main__":
    rehearse()
    forget_archives()
    manager()

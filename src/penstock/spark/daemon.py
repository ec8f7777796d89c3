"""Spark's Python daemon with everything loaded that hosts and couriers need.

Spark forks its Python workers from a daemon. One that has not loaded Arrow, numba and Penstock leaves
that to each worker: a second or two of a core before a host registers, and again for the couriers
after an epoch that failed, since a worker does not outlive a failed task. Forked from this one they
begin at once, and share the memory of what was loaded.

Only modules are loaded: no thread, connection or file is opened before the fork.
"""

from __future__ import annotations

import pyarrow.compute
import pyarrow.flight
import pyspark.worker
from pyspark.daemon import manager

import penstock.courier.courier
import penstock.host.main

LOADED = (pyarrow.compute, pyarrow.flight, pyspark.worker, penstock.courier, penstock.host)

if __name__ == "__main__":
    manager()

"""The warm-up of Spark's daemon before it forks workers, tested in a separate process."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys, threading, zipimport
import pyarrow as pa
from penstock.host.rehearsal import aggregates, rehearse
from penstock.spark.daemon import forget_archives
from penstock.state.arrays import one_chunk

aggregates()
empty = one_chunk(pa.chunked_array([], pa.int64()))
print(len(empty), "pandas" in sys.modules)
rehearse()
sys.path_importer_cache["archive"] = object.__new__(zipimport.zipimporter)
forget_archives()
print(threading.active_count(), "pandas" in sys.modules)
print([p for p, i in sys.path_importer_cache.items() if isinstance(i, zipimport.zipimporter)])
"""


def test_a_rehearsal_leaves_no_thread_and_loads_pandas_for_user_code_alone() -> None:
    """A fork would lose threads. Pandas would cost each new host half a second, if it were not loaded before
    the fork; flows without user code need none at all."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["0 False", "1 True", "[]"]


LIVE = """
import gc
from numba.core.dispatcher import Dispatcher
from penstock.host.rehearsal import rehearse

def compiled():
    kernels = [d for d in gc.get_objects() if isinstance(d, Dispatcher)]
    return {(d.py_func.__module__, d.py_func.__name__, s) for d in kernels for s in d.signatures}

rehearse()
before = compiled()
from tests.host.live_rig import Rig
from tests.host.test_live_server import ONES, all_received

rig = Rig()
rig.begin()
rig.send(0, *ONES)
all_received(rig, 1, 1)
rig.tell(rig.checkpoint())
rig.seal(0)
rig.tell(rig.move((0,), 0, 1))
rig.tell(rig.move((1,), 1, 0, whole=True))
rig.send(1, *ONES)
all_received(rig, 2, 2)
rig.tell(rig.checkpoint())
rig.seal(1)
print(sorted(str(new) for new in compiled() - before))
rig.end()
"""


def test_a_live_run_compiles_nothing_that_was_not_rehearsed() -> None:
    """Arrays from the wire are read-only, which gives kernels another signature."""
    done = subprocess.run([sys.executable, "-c", LIVE], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]"]

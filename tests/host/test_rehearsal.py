"""What Spark's daemon does before it forks workers, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys, threading, zipimport
import pyarrow as pa
from penstock.host.rehearsal import rehearse
from penstock.spark.daemon import forget_archives
from penstock.state.arrays import one_chunk

rehearse()
empty = one_chunk(pa.chunked_array([], pa.int64()))
sys.path_importer_cache["archive"] = object.__new__(zipimport.zipimporter)
forget_archives()
print(len(empty), threading.active_count(), "pandas" in sys.modules)
print([p for p, i in sys.path_importer_cache.items() if isinstance(i, zipimport.zipimporter)])
"""


def test_a_rehearsal_leaves_no_thread_and_loads_no_pandas() -> None:
    """A fork would lose threads; pandas costs a new host half a second that an epoch waits for."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["0 1 False", "[]"]

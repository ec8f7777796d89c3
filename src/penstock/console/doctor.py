"""Checks of whether this machine can run Penstock. Each returns a `Finding`.

A check gets its subject as an argument (an environment, a folder, a probe to call), never raises, and
leaves nothing behind but numba's cache. `examine` runs all checks on this machine; `report` draws the
findings. Packages that are slow to import are imported inside the check that needs them.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.table import Table

GIB = 1024**3
JAVA = 17
"""The oldest Java that Spark 4 runs on."""
PYTHONS = ((3, 11), (3, 13))
"""The oldest and the newest Python supported."""
LEAST_MEMORY = 4 * GIB
"""Bytes of memory below which the machine gets a warning."""
LEAST_FREE = 2 * GIB
"""Bytes of free disk space below which a folder gets a warning."""
BUSY = 1.5
"""Processes that want a core, for each core, above which the machine gets a warning."""
LEAST_FREE_MEMORY = 0.1
"""Share of the memory below which its free part gets a warning."""
PATIENCE = 20
"""Timeout of a program or a round trip, in seconds."""


@dataclass(frozen=True)
class Finding:
    """The result of one check. A check that is `ok` but has a hint is a warning."""

    name: str
    ok: bool
    detail: str
    hint: str = ""

    @property
    def status(self) -> Literal["ok", "warn", "fail"]:
        if not self.ok:
            return "fail"
        return "warn" if self.hint else "ok"


def examine(checkpoint: str | None = None) -> list[Finding]:
    """Run every check on this machine, which takes a few seconds."""
    cores, memory = capacity(Path("/sys/fs/cgroup"))
    findings = [
        java(os.environ),
        python(sys.version_info[:2], Path(sys.prefix), os.environ),
        spark(partial(_load, "pyspark"), os.environ),
        pandas(partial(_load, "pandas")),
        kafka(partial(_load, "confluent_kafka"), _has_connector),
        machine(cores, memory),
        load(cores, *_load_now()),
        port(""),
        flight("127.0.0.1"),
        kernels(_compile_kernel),
        folder("temp folder", tempfile.gettempdir()),
    ]
    if checkpoint is not None:
        findings.append(folder("checkpoint", checkpoint))
    return findings


def report(findings: list[Finding]) -> Table:
    """The findings as a table for a terminal."""
    from rich.markup import escape
    from rich.table import Table

    marks = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]FAIL[/]"}
    table = Table("check", "", title="penstock doctor", title_justify="left")
    for heading in ("found", "what to do"):
        table.add_column(heading, overflow="fold")  # keep paths whole, so that they can be copied
    for finding in findings:
        row = escape(finding.name), marks[finding.status], escape(finding.detail)
        table.add_row(*row, escape(finding.hint))
    return table


# --- what Spark runs on ---------------------------------------------------------------------


def java(environ: Mapping[str, str]) -> Finding:
    """Check the Java that Spark would start: that of JAVA_HOME, or else the one on the PATH."""
    install = f"install Java {JAVA} or later (https://adoptium.net), or set JAVA_HOME to its folder"
    home = environ.get("JAVA_HOME")
    if home and not os.access(Path(home, "bin", "java"), os.X_OK):
        detail = f"JAVA_HOME is {home}, which has no bin/java"
        return Finding("Java", False, detail, "correct JAVA_HOME, or unset it")
    program = shutil.which("java", path=str(Path(home, "bin")) if home else environ.get("PATH", ""))
    if program is None:
        return Finding("Java", False, "no java on the PATH and JAVA_HOME is not set", install)
    output = _output([program, "-version"], environ)
    version = java_version(output)
    if version is None:
        return Finding("Java", False, f"{program} does not run: {output[:200]}", install)
    good = version >= JAVA
    return Finding("Java", good, f"Java {version}, {program}", _unless(good, install))


def java_version(output: str) -> int | None:
    """The major version in the output of `java -version`.

    >>> java_version('openjdk version "17.0.15"'), java_version('java version "1.8.0_392"')
    (17, 8)
    """
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match.group(1)) if match else None


def python(version: tuple[int, ...], prefix: Path, environ: Mapping[str, str]) -> Finding:
    """Check this Python, and that Spark's workers would run the same version in the same environment.

    Penstock's sessions start workers with this interpreter unless PYSPARK_PYTHON names another. Another
    version fails at the first epoch; another environment may lack packages.
    """
    here = ".".join(map(str, version[:2]))
    oldest, newest = PYTHONS
    if not oldest <= version[:2] <= newest:
        hint = f"use Python {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
        return Finding("Python", False, f"Python {here}", hint)
    chosen = environ.get("PYSPARK_PYTHON")
    if not chosen:
        return Finding("Python", True, f"Python {here}")
    program = shutil.which(chosen, path=environ.get("PATH", ""))
    ask = "import sys; print('.'.join(map(str, sys.version_info[:2])), sys.prefix)"
    output = _output([program, "-c", ask], environ) if program else "not found"
    workers, _, home = output.partition(" ")
    hint = "unset PYSPARK_PYTHON, or set it to this environment's python"
    if not re.fullmatch(r"\d+\.\d+", workers):
        detail = f"Python {here}, but PYSPARK_PYTHON={chosen} does not run: {output[:200]}"
        return Finding("Python", False, detail, hint)
    detail = f"Python {here}, and PYSPARK_PYTHON={chosen} is Python {workers} of {home}"
    same = Path(home).resolve() == prefix.resolve()
    return Finding("Python", workers == here, detail, _unless(same and workers == here, hint))


def spark(load: Callable[[], tuple[str, Path]], environ: Mapping[str, str]) -> Finding:
    """Check for PySpark 4.3, and for another Spark in SPARK_HOME. `load` returns its version and folder."""
    finding, home = _package("PySpark", load, r"4\.3\.", "pip install 'pyspark>=4.3,<4.4'")
    other = environ.get("SPARK_HOME")
    if finding.ok and other and Path(other).resolve() != home.resolve():
        detail = f"{finding.detail}, but SPARK_HOME is {other}"
        return Finding("PySpark", True, detail, "unset SPARK_HOME unless that is Spark 4.3 too")
    return finding


def pandas(load: Callable[[], tuple[str, Path]]) -> Finding:
    """Check for pandas below 3, as PySpark 4.3 requires. `load` returns its version and folder."""
    return _package("pandas", load, r"[0-2]\.", "pip install 'pandas>=2.2,<3'")[0]


def kafka(load: Callable[[], tuple[str, Path]], has_connector: Callable[[], bool]) -> Finding:
    """Check for the Kafka client of live couriers, and for Spark's connector. Both are optional."""
    client = _package("confluent-kafka", load, "", "")[0]
    details = [client.detail if client.ok else "no client: pip install 'penstock[kafka]'"]
    try:
        cached = has_connector()
    except Exception as error:  # PySpark is missing
        return Finding("Kafka", True, f"{details[0]}; {_said(error)}")
    details.append(
        "Spark's connector" if cached else "ps.session(kafka=True) fetches Spark's connector"
    )
    return Finding("Kafka", True, "; ".join(details))


def _has_connector() -> bool:
    from penstock.spark.connector import has_connector

    return has_connector()


def _package(
    name: str, load: Callable[[], tuple[str, Path]], versions: str, install: str
) -> tuple[Finding, Path]:
    """Check that a package can be loaded and its version matches a pattern; also returns its folder."""
    try:
        version, home = load()
    except Exception as error:
        return Finding(name, False, _said(error), install), Path()
    good = re.match(versions, version) is not None
    return Finding(name, good, f"{name} {version}", _unless(good, install)), home


def _load(name: str) -> tuple[str, Path]:
    module = import_module(name)
    return str(module.__version__), Path(str(module.__file__)).parent


# --- the machine ----------------------------------------------------------------------------


def machine(cores: float, memory: int) -> Finding:
    """Check the cores, and the memory in bytes, that this process may use."""
    detail = f"{cores:g} cores, {memory / GIB:.1f} GiB of memory"
    hints = []
    if cores < 2:
        hints.append("use two cores or more: hosts and Spark's tasks share them")
    if memory < LEAST_MEMORY:
        hints.append(f"use {LEAST_MEMORY // GIB} GiB or more: Spark's JVM and state share it")
    return Finding("machine", True, detail, "; ".join(hints))


def load(cores: float, waiting: float, free: int, memory: int) -> Finding:
    """Check how busy the machine is. `waiting` processes want a core; `free` of `memory` bytes are free."""
    share = waiting / cores
    detail = (
        f"{waiting:.1f} processes want a core ({share:.1f} for each), {free / GIB:.1f} GiB free"
    )
    hints = []
    if share > BUSY:
        hints.append("hosts wait for cores: give them more cores, or move other programs away")
    if free < memory * LEAST_FREE_MEMORY:
        hints.append("memory is short: see host_memory_mb, or move other programs away")
    return Finding("load", True, detail, "; ".join(hints))


def _load_now() -> tuple[float, int, int]:
    """Processes that want a core, free bytes of memory, and all bytes of it."""
    import psutil

    memory = psutil.virtual_memory()
    return psutil.getloadavg()[0], int(memory.available), int(memory.total)


def capacity(cgroup: Path) -> tuple[float, int]:
    """Number of cores, and bytes of memory: the machine's, or the container's limits if these are lower."""
    import psutil

    affinity = getattr(os, "sched_getaffinity", None)
    cores: float = len(affinity(0)) if affinity else os.cpu_count() or 1
    memory = int(psutil.virtual_memory().total)
    quota = _numbers(cgroup / "cpu.max")  # version 2: both numbers in one file
    if not quota:
        quota = _numbers(cgroup / "cpu/cpu.cfs_quota_us") + _numbers(
            cgroup / "cpu/cpu.cfs_period_us"
        )
    if len(quota) == 2 and min(quota) > 0:
        cores = min(cores, quota[0] / quota[1])
    for file in ("memory.max", "memory/memory.limit_in_bytes"):
        memory = min([memory, *_numbers(cgroup / file)])
    return cores, memory


def _numbers(file: Path) -> list[int]:
    """The numbers in a limits file; empty if it is absent or sets no limit."""
    try:
        return [int(word) for word in file.read_text().split()]
    except (OSError, ValueError):
        return []


def port(address: str) -> Finding:
    """Check that a free port can be bound. An empty address means all interfaces."""
    try:
        with socket.create_server((address, 0)) as server:
            return Finding("port", True, f"bound port {server.getsockname()[1]}")
    except OSError as error:
        return Finding("port", False, _said(error), "allow this user to listen on free ports")


def flight(address: str) -> Finding:
    """Check a round trip of rows over Arrow Flight, between a server and a client on this machine."""
    try:
        took = _round_trip(address)
    except Exception as error:
        hint = "allow TCP connections to this machine itself; behind a proxy, export no_proxy="
        return Finding("Arrow Flight", False, _said(error), f"{hint}{address}")
    return Finding("Arrow Flight", True, f"round trip on {address} in {took * 1000:.1f} ms")


def _round_trip(address: str) -> float:
    import pyarrow as pa
    from pyarrow import flight

    class Echo(flight.FlightServerBase):  # type: ignore[misc]
        def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            writer.begin(reader.schema)
            for chunk in reader:
                writer.write_batch(chunk.data)

    batch = pa.record_batch({"row": pa.array(range(1000))})
    options = flight.FlightCallOptions(timeout=PATIENCE)
    with (
        Echo(f"grpc://{address}:0") as server,
        flight.connect(f"grpc://{address}:{server.port}") as client,
    ):
        started = time.perf_counter()
        descriptor = flight.FlightDescriptor.for_command(b"doctor")
        writer, reader = client.do_exchange(descriptor, options)
        with writer:
            writer.begin(batch.schema)
            writer.write_batch(batch)
            writer.done_writing()
            back = reader.read_all()
        took = time.perf_counter() - started
    if not back.equals(pa.Table.from_batches([batch])):
        raise OSError("the rows changed on the round trip")
    return took


def kernels(compile_one: Callable[[], str]) -> Finding:
    """Check that numba compiles and can write its cache. `compile_one` returns the cache folder."""
    started = time.perf_counter()
    try:
        cache = compile_one()
    except Exception as error:
        hint = "reinstall numba, or set NUMBA_CACHE_DIR to a writable folder"
        return Finding("numba", False, _said(error), hint)
    took = time.perf_counter() - started
    return Finding("numba", True, f"compiles ({took:.1f} s with its import), caches in {cache}")


def _compile_kernel() -> str:
    import numba
    import numpy as np

    @numba.njit(cache=True, nogil=True)
    def total(values: Any) -> Any:
        result = 0
        for value in values:
            result += value
        return result

    if total(np.arange(4)) != 6:
        raise ArithmeticError("a compiled sum is wrong")
    cache = Path(str(total.stats.cache_path))
    with tempfile.TemporaryFile(dir=cache):
        return str(cache)


# --- folders --------------------------------------------------------------------------------


def folder(name: str, place: str, least_free: int = LEAST_FREE) -> Finding:
    """Check that a file can be written, renamed, read and deleted in a folder: a path or a pyarrow.fs URI.

    If the folder does not exist, its nearest existing parent is checked, so that nothing is left behind.
    """
    try:
        free = _write_and_remove(place)
    except Exception as error:
        hint = "use a folder that this user can write to, or change its permissions"
        return Finding(name, False, f"{place}: {_said(error)}", hint)
    if free is None:
        return Finding(name, True, f"{place} is writable")
    hint = _unless(free >= least_free, f"free some space: {least_free / GIB:g} GiB or more")
    return Finding(name, True, f"{place} is writable, {free / GIB:.1f} GiB free", hint)


def _write_and_remove(place: str) -> int | None:
    """Write and remove a probe file; returns the free bytes, or None if they are not known."""
    from pyarrow import fs

    uri = place if "://" in place else str(Path(place).absolute())
    files, path = fs.FileSystem.from_uri(uri)
    local = files.type_name == "local"
    if local or files.type_name == "hdfs":  # object stores have no folders
        while files.get_file_info(path).type == fs.FileType.NotFound:
            path = str(Path(path).parent)
    probe = f"{path}/penstock-doctor-{uuid.uuid4().hex}"
    try:
        with files.open_output_stream(probe) as stream:
            stream.write(b"penstock")
        files.move(probe, f"{probe}-renamed")
        with files.open_input_stream(f"{probe}-renamed") as stream:
            if stream.read() != b"penstock":
                raise OSError("a file has other content than was written to it")
        files.delete_file(f"{probe}-renamed")
    except BaseException:
        for leftover in (probe, f"{probe}-renamed"):
            with suppress(OSError):
                files.delete_file(leftover)
        raise
    return shutil.disk_usage(path).free if local else None


def _output(command: list[str], environ: Mapping[str, str]) -> str:
    """A program's output, or the reason why it did not run."""
    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return _said(error)
    return (done.stdout + done.stderr).strip()


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _unless(good: bool, hint: str) -> str:
    return "" if good else hint

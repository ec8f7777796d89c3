"""Jars from Maven Central, in the user's cache: ~/.cache/penstock, or the folder in PENSTOCK_CACHE.

They are downloaded once, by the Ivy in PySpark. A cache folder is complete or does not exist. If two
processes need the same folder, one waits for the other.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pyspark

from penstock.errors import SettingError

_RESOLVE_S = 300


class Artifact(NamedTuple):
    """Name of a jar on Maven Central."""

    organisation: str
    name: str
    revision: str


def jar_folder(name: str, artifacts: Iterable[Artifact], transitive: bool = False) -> Path:
    """The cache folder of that name with the artifacts' jars, which are downloaded the first time.
    `transitive` includes their dependencies. Raises a `SettingError` if the download fails."""
    return cached(name, lambda folder: _fill(folder, list(artifacts), transitive))


def cached(name: str, fill: Callable[[Path], None]) -> Path:
    """The cache folder of that name, which is made the first time. Other processes wait for that."""
    home = _home()
    home.mkdir(parents=True, exist_ok=True)
    folder = home / name
    with (home / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            fill(folder)
    return folder


def is_cached(name: str) -> bool:
    """Whether the cache has a folder of that name. Downloads nothing."""
    return (_home() / name).exists()


def jar_list(folder: Path) -> str:
    """The jars of a folder, in the form of `spark.jars`, without those that are part of Spark."""
    own = artifact_names(path.name for path in spark_jars(os.environ).glob("*.jar"))
    jars = [path for path in sorted(folder.glob("*.jar")) if not artifact_names([path.name]) & own]
    return ",".join(map(str, jars))


def spark_jars(environ: Mapping[str, str]) -> Path:
    """The folder of Spark's own jars."""
    return Path(environ.get("SPARK_HOME") or Path(pyspark.__file__).parent, "jars")


def artifact_names(jars: Iterable[str]) -> set[str]:
    """Names of artifacts, without their versions.

    >>> artifact_names(["scala-library-2.13.16.jar"])
    {'scala-library'}
    """
    return {re.sub(r"-\d[^/]*\.jar$", "", jar) for jar in jars}


def _home() -> Path:
    return Path(os.environ.get("PENSTOCK_CACHE", "~/.cache/penstock")).expanduser()


def _fill(folder: Path, artifacts: list[Artifact], transitive: bool) -> None:
    began = time.monotonic()
    _tell(f"Fetching {folder.name} from Maven Central into {folder.parent}")
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        _fetch(artifacts, transitive, part)
        part.rename(folder)
        size = sum(path.stat().st_size for path in folder.glob("*.jar"))
        _tell(f"Fetched {size / 1e6:.0f} MB in {time.monotonic() - began:.0f} s")
    except (OSError, subprocess.SubprocessError) as failed:
        raise SettingError(
            f"cannot fetch {folder.name} from Maven Central: {failed}",
            hint=f"check the network, or copy {folder} from a machine that has it",
        ) from failed
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _tell(text: str) -> None:
    """Print a line for users who wait at a terminal."""
    print(text, file=sys.stderr, flush=True)


def _fetch(artifacts: list[Artifact], transitive: bool, folder: Path) -> None:
    """Download jars by Ivy, from Maven Central or the repository in its settings."""
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    with tempfile.TemporaryDirectory(prefix="penstock-ivy-") as cache:
        wanted = Path(cache, "ivy.xml")
        wanted.write_text(
            '<ivy-module version="2.0"><info organisation="penstock" module="jars"/><dependencies>'
            + "".join(
                f'<dependency org="{one.organisation}" name="{one.name}" rev="{one.revision}" '
                f'conf="*->default" transitive="{str(transitive).lower()}"/>'
                for one in artifacts
            )
            + "</dependencies></ivy-module>"
        )
        words = ["-cache", cache, "-warn", "-ivy", str(wanted), "-types", "jar", "bundle"]
        words += ["-retrieve", f"{folder}/[artifact]-[revision].[ext]"]
        done = subprocess.run(
            ["java", "-jar", str(ivy), *words], capture_output=True, text=True, timeout=_RESOLVE_S
        )
    if done.returncode or not list(folder.glob("*.jar")):
        raise OSError(why_not(done.stdout + done.stderr))


def why_not(output: str) -> str:
    """The reason of a failed download, from Ivy's output.

    >>> why_not("::::::\\n\\t:: org.apache.spark#spark-avro;9.9: not found\\n::::::")
    'org.apache.spark#spark-avro;9.9: not found'
    """
    lines = [line.strip(" \t:") for line in output.splitlines()]
    wanted = ("not found", "error", "Exception", "refused", "timed out")
    reasons = [line for line in lines if any(word in line for word in wanted)]
    return "; ".join(dict.fromkeys(reasons[-3:])) or output[-500:]

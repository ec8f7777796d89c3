"""Spark settings that somebody has made before Penstock is asked: by spark-submit, in spark-defaults.conf, on
the builder, in a session that runs. Penstock's own are only defaults beside them."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.spark import private
from penstock.spark.maven import spark_jars

_LINE = re.compile(r"\s*([^#!\s=:]+)[\s=:]+(.*?)\s*")
"""A line of a properties file: the name, then spaces, = or :, then the value."""
_NO_MASTER = "local[*]"
"""The master that spark-submit names if nobody does."""


def known_settings(builder: SparkSession.Builder, environ: Mapping[str, str]) -> dict[str, str]:
    """What is set for the session that this builder would make, or find, as far as it can be known before a
    JVM has been started."""
    return submitted(environ) | private.running_settings() | private.builder_settings(builder)


def submitted(environ: Mapping[str, str]) -> dict[str, str]:
    """Settings from outside of the program: of spark-submit, and of spark-defaults.conf."""
    if "PYSPARK_GATEWAY_PORT" in environ:  # spark-submit has started this process, and has them all
        found = private.submitted_settings()
        return {name: value for name, value in found.items() if value != _NO_MASTER}
    given = _submit_arguments(environ.get("PYSPARK_SUBMIT_ARGS", ""))
    named = given.pop("--properties-file", None)
    return (_properties(Path(named)) if named else spark_defaults(environ)) | given


def spark_defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """What the spark-defaults.conf says that a session in this environment begins with."""
    folder = environ.get("SPARK_CONF_DIR") or spark_jars(environ).parent / "conf"
    return _properties(Path(folder, "spark-defaults.conf"))


def _submit_arguments(text: str) -> dict[str, str]:
    """The settings in what PySpark hands to spark-submit; `--properties-file` is one of them.

    >>> _submit_arguments("--conf spark.a=b=c --master local[2] --name x pyspark-shell")
    {'spark.a': 'b=c', 'spark.master': 'local[2]'}
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--conf", "-c", action="append", default=[])
    parser.add_argument("--master")
    parser.add_argument("--py-files")
    parser.add_argument("--properties-file")
    given, _ = parser.parse_known_args(shlex.split(text))
    found = dict(pair.split("=", 1) for pair in given.conf if "=" in pair)
    named = {
        "spark.master": given.master,
        "spark.submit.pyFiles": given.py_files,
        "--properties-file": given.properties_file,
    }
    return found | {name: value for name, value in named.items() if value}


def _properties(file: Path) -> dict[str, str]:
    """The settings in a properties file; none if there is none that can be read."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    found = [_LINE.fullmatch(line) for line in lines]
    return {one[1]: one[2] for one in found if one is not None}


def shipped_package(known: Mapping[str, str]) -> str | None:
    """The file of Penstock among those that Spark brings along for Python, by its name on an executor.

    >>> shipped_package({"spark.submit.pyFiles": "a.py,s3://jars/penstock-1.2.zip"})
    'penstock-1.2.zip'
    """
    files = known.get("spark.submit.pyFiles", "").split(",")
    names = [file.rpartition("/")[2] for file in files]
    return next((name for name in names if re.match(r"penstock.*\.(zip|whl|egg)$", name)), None)

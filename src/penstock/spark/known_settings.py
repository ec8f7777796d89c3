"""Spark settings from spark-submit, spark-defaults.conf, the builder and a running session. They take
precedence over Penstock's own, which are only defaults."""

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
"""Line of a properties file: the name, then spaces, = or :, then the value."""
_NO_MASTER = "local[*]"
"""Master that spark-submit uses by default."""


def known_settings(builder: SparkSession.Builder, environ: Mapping[str, str]) -> dict[str, str]:
    """Settings of the session that this builder would create or find, as far as they can be known without a
    JVM."""
    return submitted(environ) | private.running_settings() | private.builder_settings(builder)


def submitted(environ: Mapping[str, str]) -> dict[str, str]:
    """Settings from outside the program: spark-submit and spark-defaults.conf."""
    if "PYSPARK_GATEWAY_PORT" in environ:  # started by spark-submit, which has all settings
        settings = private.submitted_settings()
        return {name: value for name, value in settings.items() if value != _NO_MASTER}
    arguments = _submit_arguments(environ.get("PYSPARK_SUBMIT_ARGS", ""))
    named = arguments.pop("--properties-file", None)
    return (_properties(Path(named)) if named else spark_defaults(environ)) | arguments


def spark_defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """Settings of the spark-defaults.conf of this environment."""
    folder = environ.get("SPARK_CONF_DIR") or spark_jars(environ).parent / "conf"
    return _properties(Path(folder, "spark-defaults.conf"))


def _submit_arguments(text: str) -> dict[str, str]:
    """Settings in the arguments of PySpark to spark-submit, including `--properties-file`.

    >>> _submit_arguments("--conf spark.a=b=c --master local[2] --name x pyspark-shell")
    {'spark.a': 'b=c', 'spark.master': 'local[2]'}
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--conf", "-c", action="append", default=[])
    parser.add_argument("--master")
    parser.add_argument("--py-files")
    parser.add_argument("--properties-file")
    arguments, _ = parser.parse_known_args(shlex.split(text))
    settings = dict(pair.split("=", 1) for pair in arguments.conf if "=" in pair)
    named = {
        "spark.master": arguments.master,
        "spark.submit.pyFiles": arguments.py_files,
        "--properties-file": arguments.properties_file,
    }
    return settings | {name: value for name, value in named.items() if value}


def _properties(file: Path) -> dict[str, str]:
    """Settings of a properties file; empty if it cannot be read."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    matches = (_LINE.fullmatch(line) for line in lines)
    return {match[1]: match[2] for match in matches if match is not None}


def shipped_package(known: Mapping[str, str]) -> str | None:
    """Name on executors of the Penstock package that Spark ships in its Python files; None if there is none.

    >>> shipped_package({"spark.submit.pyFiles": "a.py,s3://jars/penstock-1.2.zip"})
    'penstock-1.2.zip'
    """
    files = known.get("spark.submit.pyFiles", "").split(",")
    names = [file.rpartition("/")[2] for file in files]
    return next((name for name in names if re.match(r"penstock.*\.(zip|whl|egg)$", name)), None)

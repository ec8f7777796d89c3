"""The code of the documentation, run as a reader would: the blocks of a page, one after another.

A page may use names that it does not define, such as `df` or `flow`; `common_names` has them. Where a block
names a machine or a store of the reader's, `PLACES` has one of the test's.
"""

from __future__ import annotations

import ast
import inspect
import logging
import re
import shlex
import textwrap
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQueryManager
from typer.testing import CliRunner

import penstock as ps
from penstock.cli.app import app
from penstock.spark import s3a
from penstock.spark.session import session as real_session
from tests.testing.certificates import Authority

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BROKERS = ("broker:9092", "localhost:9092")
PLACES = {
    "hdfs:///flows/": "out/hdfs/",
    "s3://bucket/": "out/s3/",
    "s3a://bucket/": "out/s3a/",
    "/etc/penstock/": "certificates/",
    'ps.to("delta"': 'ps.to("orc"',  # there is no Delta for this Spark yet: make test-delta
}
"""Text in a block -> what stands for it in a test."""
_FENCE = re.compile(r"^\s*(```|~~~)\s*(\w*)")
_READS = re.compile(r"penstock (?:ctl (?:status|journal)|state (?:ls|show|slots)) (\S+)")
"""Commands that look at a checkpoint, and end."""
_EPOCH_S = 90
_COLUMNS = (
    *("timestamp", "timestamp ts", "timestamp date_time", "value", "value id"),
    *("value % 50 user", "value % 20 auction", "value % 1000 price"),
    *("'/' || value % 7 page", "timestamp + interval 10 seconds expires"),
    *("'s' || value % 9 symbol", "value % 2 = 0 traded"),
)
"""Columns of the rows that pages call `df`, `clicks` or `bids`."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    """Of its first line of text, from 1."""
    language: str
    text: str

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"

    @property
    def code(self) -> ast.Module:
        # an excerpt of a class may begin with a comment that names its file, further to the left
        text = textwrap.dedent(re.sub(r"^#.*$", "", self.text, flags=re.MULTILINE))
        return ast.parse("\n" * (self.line - 1) + text, name_of(self.page))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    start, language, block = 0, "", list[str]()
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and not start:
            start, language, block = number + 1, fence[2], []
        elif fence:
            yield Block(page, start, language, textwrap.dedent("\n".join(block)))
            start = 0
        elif start:
            block.append(line)


def pages_with_code() -> list[Path]:
    """Pages whose code runs here. That of CONTRIBUTING.md changes the package: it has a test of its own."""
    with_code = [page for page in PAGES if any(b.language == "python" for b in blocks(page))]
    return [page for page in with_code if page.name != "CONTRIBUTING.md"]


def kafka_blocks(page: Path) -> set[Block]:
    """Blocks that need a broker: they name one, or use what such a block has defined."""
    found, theirs = set[Block](), set[str]()
    for block in blocks(page):
        if block.language != "python":
            continue
        loaded, stored = set[str](), set[str]()
        for node in ast.walk(block.code):
            if isinstance(node, ast.Name):
                (stored if isinstance(node.ctx, ast.Store) else loaded).add(node.id)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                stored.add(node.name)
        if any(one in block.text for one in BROKERS) or (loaded - stored) & theirs:
            found.add(block)
            theirs |= stored
        else:
            theirs -= stored
    return found


def common_names(spark: SparkSession, page: Path) -> dict[str, Any]:
    """Names that pages use and do not define: a streaming DataFrame, flows on it, a sink."""
    rate = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", 200)
        .option("numPartitions", 2)
        .load()
    )
    df = rate.selectExpr(*_COLUMNS)
    names = {
        "ps": ps,
        "spark": spark,
        "df": df,
        "clicks": df,
        "bids": df,
        "auctions": ps.flow(df.select("id", "expires", "date_time"), event_time="date_time"),
        "flow": ps.flow(df).key_by("user").aggregate(n=ps.count(), name="clicks").sla("1s"),
        "sink": ps.collect(),
        **dict.fromkeys(("key", "secret", "password", "jaas"), "secret"),
    }
    if page.name == "order.md":
        names |= {"parsed": lambda batch: batch, "Sessions": _Passed, "Ranks": _Passed}
    elif page.name == "testing.md":
        guide = next(b for b in blocks(ROOT / "docs/guide.md") if "class Sessions" in b.text)
        exec(compile(guide.code, str(guide), "exec"), names)
    return names


class _Passed(ps.KeyedProcessor):
    """Emits the user and the page of each row."""

    output_schema = "user long, page string"

    def handle_input_rows(self, key: Any, rows: Any, timers: Any) -> Iterator[Any]:
        for row in rows:
            yield (row.user, row.page)


@dataclass
class _Below(ast.NodeTransformer):
    """Puts the files of a page below a folder: Spark's process has a working folder of its own."""

    folder: Path

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        text = node.value
        if isinstance(text, str) and re.match(r"(out|ck|checkpoints)(/|$)", text):
            return ast.copy_location(ast.Constant(f"{self.folder}/{text}"), node)
        return node


@dataclass
class Reader:
    """Runs pages in a folder of its own, and in a session that all tests share."""

    spark: SparkSession
    folder: Path
    patch: pytest.MonkeyPatch

    def __post_init__(self) -> None:
        self._started: list[ps.FlowQuery] = []
        self._listeners: list[StreamingQueryListener] = []
        start, add = ps.Flow.start, StreamingQueryManager.addListener

        def started(flow: ps.Flow, *arguments: Any, **options: Any) -> ps.FlowQuery:
            self._stop()  # a page may start several flows on one checkpoint
            self._started.append(start(flow, *arguments, **options))
            return self._started[-1]

        def added(manager: StreamingQueryManager, listener: StreamingQueryListener) -> None:
            self._listeners.append(listener)
            add(manager, listener)

        self.patch.chdir(self.folder)
        self.patch.setattr(StreamingQueryManager, "addListener", added)
        self.patch.setattr(ps.Flow, "start", started)
        self.patch.setattr(ps.FlowQuery, "await_termination", _epoch_of)
        self.patch.setattr(ps, "session", self._session)
        self.patch.setattr(self.spark, "stop", lambda: None)
        self.patch.setattr(s3a, "s3a_jars", lambda: "aws.jar,spark-hadoop-cloud.jar")

    def run(self, page: Path, places: Mapping[str, str], leave_out: set[Block]) -> list[Block]:
        """Run the code of a page but for some blocks; returns the blocks that ran."""
        if any("/etc/penstock/" in block.text for block in blocks(page)):
            tls = Authority(self.folder / "authority").tls("DNS:penstock")
            certificates = self.folder / "certificates"
            certificates.mkdir()
            for name, file in zip(
                ("node.crt", "node.key", "ca.crt"),
                (tls.certificate, tls.key, tls.authority),
                strict=True,
            ):
                (certificates / name).symlink_to(file)
            places = {**places, "/etc/penstock/": f"{certificates}/"}
        names = common_names(self.spark, page) | {"__name__": "__main__"}
        logger = logging.getLogger("penstock")
        level, handlers = logger.level, list(logger.handlers)
        ran = []
        try:
            for block in blocks(page):
                if block.language == "python" and block not in leave_out:
                    self._run(block, PLACES | dict(places), names)
                    ran.append(block)
                elif block.language == "sh":
                    _look(block)
        finally:
            logger.handlers[:] = handlers
            logger.setLevel(level)
            self._stop()
            for listener in self._listeners:  # the next page has the same session
                self.spark.streams.removeListener(listener)
        return ran

    def _run(self, block: Block, places: Mapping[str, str], names: dict[str, Any]) -> None:
        text = block.text
        for here, there in places.items():
            text = text.replace(here, there)
        placed = Block(block.page, block.line, block.language, text)
        tests = set(names)
        exec(compile(_Below(self.folder).visit(placed.code), str(block), "exec"), names)
        for name in names.keys() - tests:
            if name.startswith("test_"):
                names[name]()

    def _session(self, *arguments: Any, **options: Any) -> SparkSession:
        """The shared session, if the real function would take these arguments."""
        bound = inspect.signature(real_session).bind(*arguments, **options).arguments
        conf = bound.get("conf", {})
        assert all(isinstance(text, str) for pair in conf.items() for text in pair)
        return self.spark

    def _stop(self) -> None:
        """End the queries that run. Each must have come through an epoch."""
        while self._started:
            query = self._started.pop()
            if query.is_active:
                _epoch_of(query)
                query.stop()
            if (failed := query.exception()) is not None:
                raise failed


def _epoch_of(query: ps.FlowQuery, timeout: float | None = None) -> bool:
    """Wait until a query has come through an epoch with rows, instead of for its end. Raises its error."""
    until = time.monotonic() + _EPOCH_S
    time.sleep(0.01)  # a page may ask again and again
    while not any(epoch.rows for epoch in query.progress) and query.is_active:
        assert time.monotonic() < until, query.status
        time.sleep(0.05)
    if (failed := query.exception()) is not None:
        raise failed
    return False


def _look(block: Block) -> None:
    """Run the commands of a block that look at a checkpoint which the page has made."""
    for line in block.text.splitlines():
        command = line.partition("#")[0].strip()
        reads = _READS.match(command)
        if reads and Path(reads[1]).exists():
            shown = CliRunner().invoke(app, shlex.split(command)[1:])
            assert shown.exit_code == 0, f"{block}: {command}: {shown.output}"
            assert shown.output.strip()

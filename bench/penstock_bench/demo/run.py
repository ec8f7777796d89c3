"""Runs the demo: starts Spark and the flow, has its story told, and checks the answer."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.text import Text

import penstock as ps
from penstock.console.terminal import cleaned_up, counted, progress_messages
from penstock.errors import PenstockError, SettingError
from penstock.logs import TextFormatter
from penstock.spark.checkpoint import locate
from penstock.spark.session import quiet_session
from penstock.state.store.store import Store
from penstock_bench.demo import bids
from penstock_bench.demo.check import bids_read, check, waiting_ms
from penstock_bench.demo.telling import Demo, Show, conclude, introduce
from penstock_bench.demo.verdict import exit_code, judged
from penstock_bench.live.load import LedSource

_START_S = 120.0
"""Most seconds until the flow is up."""
_FRAME_S = 0.25
_MARK = ".penstock-demo"
"""File that tells that a folder was made by a demo, and may be replaced by the next one."""
_OURS = {_MARK, "checkpoint", "report.html", "log.txt"}
"""What the output folder of a demo holds."""


def desktop(terminal: bool) -> bool:
    """Whether a browser can be opened: the output is a terminal, and there is a screen."""
    screen = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    return terminal and screen


def run(demo: Demo) -> int:
    """Run the demo and return its exit code. Cleans up after itself, also on Ctrl-C."""
    console = Console(highlight=False, soft_wrap=True)
    introduce(console, demo)
    make_room(demo.output)
    with cleaned_up(console) as resources:
        resources.enter_context(_removed_if_interrupted(demo.output))
        resources.enter_context(_logged(demo.output / "log.txt"))
        with progress_messages(console) as tell:
            temporary = resources.enter_context(
                tempfile.TemporaryDirectory(prefix="penstock-demo-")
            )
            tell("Starting Spark on this machine, which takes about 10 s")
            spark = resources.enter_context(quiet_session("penstock-demo", demo.hosts + 4))
            hosts = counted(demo.first_hosts, "host")
            tell(f"Starting the flow with {hosts}; compiling its code may take a minute, once")
            source = bids.source(demo.story, demo.auctions, Path(temporary, "gate"))
            output = ps.collect()
            query = _started(demo, source, output)
            resources.callback(query.stop)
            _await_hosts(query)
        _announce(console, demo, query.dashboard_url)
        source.begin(int(time.time() * 1000))
        killed = Show(console, demo, query, source).watch()
        with progress_messages(console) as tell:
            tell("Stopping the flow")
            end_ms, begin_ms = time.time() * 1000, source.load_ms
            query.stop()
            query.await_termination()
            tell("Checking the answer with DuckDB")
            read = bids_read(Store(locate(spark, demo.checkpoint).store))
            waited_ms = waiting_ms(source, read, end_ms)
            checked = check(source, read, output.epochs().values())
    result = judged(query.recording.moments(), demo.sla, begin_ms, waited_ms)
    recovery_s = None if killed is None else killed.recovery_s(query.progress)
    conclude(console, demo, checked, result, killed, recovery_s)
    if demo.keep_open and query.dashboard_url:
        _keep_open(demo, query.dashboard_url)
    return exit_code(not checked.wrong, result.met, recovery_s)


def make_room(output: Path) -> None:
    """Create the output folder, in place of that of an earlier demo. No other folder is replaced."""
    try:
        held = {path.name for path in output.iterdir()} if output.exists() else set()
        if held - _OURS:
            raise SettingError(
                f"{output} holds other files than an earlier demo's, such as {min(held - _OURS)}",
                hint="name another folder with --output",
            )
        if held and _MARK not in held:
            raise SettingError(
                f"{output} was not made by a demo: it has no file {_MARK}",
                hint="name another folder with --output, or remove this one if nobody needs it",
            )
        if held:
            shutil.rmtree(output)
        output.mkdir(parents=True, exist_ok=True)
        (output / _MARK).touch()
    except OSError as wrong:
        raise SettingError(
            f"cannot write to {output}: {wrong.strerror or wrong}",
            hint="name another folder with --output",
        ) from wrong


@contextmanager
def _removed_if_interrupted(folder: Path) -> Iterator[None]:
    """Remove the folder if Ctrl-C or SIGTERM ends the block. After an error it stays, with its log."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def _logged(file: Path) -> Iterator[None]:
    """Write Penstock's log lines to a file: the terminal is for the story."""
    handler, logger = logging.FileHandler(file), logging.getLogger("penstock")
    handler.setFormatter(TextFormatter())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
        handler.close()


def _started(demo: Demo, source: LedSource, output: ps.Collect) -> ps.FlowQuery:
    flow = bids.flow(source, demo.sla, demo.first_hosts, demo.hosts)
    return flow.start(
        output,
        mode="live",
        checkpoint=demo.checkpoint,
        checkpoint_every="500ms",
        hosts=demo.first_hosts,
        name="penstock demo",
        dashboard=True,
        report=str(demo.output / "report.html"),
    )


def _await_hosts(query: ps.FlowQuery) -> None:
    """Wait for the first epoch: hosts and couriers are up then."""
    until = time.monotonic() + _START_S
    while not query.progress:
        if query.await_termination(_FRAME_S):
            raise PenstockError("the flow ended before any bid arrived")
        if time.monotonic() > until:
            raise PenstockError(
                f"the flow is not up after {_START_S:.0f} s: {query.status.message}",
                hint="see whether this machine has memory and a core to spare, and run penstock doctor",
            )


def _announce(console: Console, demo: Demo, url: str | None) -> None:
    if url is None:
        return
    console.print(Text.assemble("Dashboard: ", (url, "bold")))
    if demo.opens:
        webbrowser.open(url)


def _keep_open(demo: Demo, url: str) -> None:
    """Serve the dashboard of the ended run at its old address, until Ctrl-C."""
    from penstock.console.dashboard import serve

    with suppress(KeyboardInterrupt):
        serve(demo.checkpoint, urlsplit(url).port or 0, opens=False)

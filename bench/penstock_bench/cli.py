"""The commands `penstock bench`, `demo` and `nexmark`, registered by the entry points of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from penstock_bench.workloads.nexmark.catalog import TITLES

bench = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
demo = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
nexmark = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The NEXMark benchmark: generate its events, and run its queries q0 to q22 on them.",
    no_args_is_help=True,
)

_LINE_S = 5.0
"""Seconds between two progress lines, if there is no terminal to draw on."""


@bench.command()
def run_bench(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Benchmark: pipeline, migration, nexmark, switch, ordered, burst, chaos, live, peers, "
            "load, start or soak.",
        ),
    ],
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the report to this file.")
    ] = None,
    plots: Annotated[
        str | None, typer.Option("--plots", metavar="DIR", help="Draw charts into this folder.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run a short version, to try it out.")
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option(min=15, metavar="S", help="chaos: length of the load in seconds."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="chaos: seed of the faults.")
    ] = None,
    cluster: Annotated[
        bool,
        typer.Option("--cluster", help="chaos: run on a standalone cluster, with Kafka and S3."),
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.25, metavar="M", help="soak: length of the run in minutes."),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            metavar="P",
            help="live, peers, migration, switch, ordered, burst: run only this part; may be repeated.",
        ),
    ] = None,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace",
            help="pipeline: only show where the time of a trigger goes, and write pipeline-trace.json for "
            "Perfetto.",
        ),
    ] = False,
) -> None:
    """Run a benchmark and show its metrics with their goals."""
    import json
    from pathlib import Path

    from rich.console import Console

    from penstock.errors import SettingError
    from penstock_bench.catalog import find
    from penstock_bench.charts import draw
    from penstock_bench.report import judged

    chosen, console = find(name), Console(soft_wrap=True, highlight=False, markup=False)
    file = Path(json_file) if json_file else None
    if file is not None and not file.parent.is_dir():
        raise SettingError(f"cannot write {file}: no such folder", hint="create the folder first")
    if plots is not None and chosen.pictures is None:
        raise SettingError(f"bench {name} has no charts", hint="leave --plots out")
    if plots is not None and not Path(plots).is_dir():
        raise SettingError(
            f"cannot draw to {plots}: no such folder", hint="create the folder first"
        )
    arguments: dict[str, object] = {"seconds": seconds, "seed": seed, "minutes": minutes}
    arguments |= {"part": part or None, "cluster": cluster or None, "trace": trace or None}
    options = {option: value for option, value in arguments.items() if value is not None}
    chosen.must_take(name, options)
    report = chosen.run(console.print, quick, **options)
    if chosen.merged is not None and file is not None and file.exists():
        report = chosen.merged(json.loads(file.read_text()), report)
    console.print(judged(report.ratios, chosen.goals))
    if file is not None:
        file.write_text(report.to_json() + "\n")
    if plots is not None and chosen.pictures is not None:
        for picture in draw(name, chosen.pictures, json.loads(report.to_json()), Path(plots)):
            console.print(f"wrote {picture}")


@demo.command()
def run_demo(
    seconds: Annotated[
        int, typer.Option(min=1, help="Length of the story; the warm-up comes before it.")
    ] = 90,
    rate: Annotated[
        int, typer.Option(min=1, help="Bids per second; five times as many in the burst.")
    ] = 100,
    keys: Annotated[int, typer.Option(min=400, help="Number of auctions.")] = 2_000,
    hosts: Annotated[int, typer.Option(min=1, max=64, help="Maximum number of hosts.")] = 12,
    sla: Annotated[
        str, typer.Option(metavar="LATENCY", help="Bound of the average latency of each second.")
    ] = "2s",
    output: Annotated[
        str, typer.Option(metavar="DIR", help="Folder for checkpoint, log and report.")
    ] = "penstock-demo",
    opens: Annotated[
        bool | None,
        typer.Option(
            "--open/--no-open",
            help="Open the dashboard in a browser. Default: on a desktop's terminal.",
        ),
    ] = None,
    keep_open: Annotated[
        bool, typer.Option("--keep-open", help="Serve the dashboard after the end, until Ctrl-C.")
    ] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Live mode. The demo always runs in it.")
    ] = True,
) -> None:
    """See an SLA kept through a hotspot, a burst and a killed host, in 90 s.

    Bids of NEXMark arrive, steadily, then with a moving hotspot, then five times as many. Then a host is
    killed. The terminal says what happens and why, and DuckDB checks the answer. Exit codes: 0 if all is
    well, 1 if the answer is wrong, 3 if the SLA was missed or no killed host recovered.
    """
    import sys
    from pathlib import Path

    from penstock.model import SLA, milliseconds
    from penstock_bench.demo.phases import Story
    from penstock_bench.demo.run import desktop, run
    from penstock_bench.demo.telling import Demo

    bound = SLA(milliseconds(sla), 1000)
    shown = desktop(sys.stdout.isatty()) if opens is None else opens
    story = Story(seconds, rate)
    code = run(Demo(story, keys, hosts, bound, Path(output), shown, keep_open))
    raise typer.Exit(code)


@nexmark.command("generate")
def generate(
    events: Annotated[
        int, typer.Option(min=0, metavar="N", help="Number of persons, auctions and bids together.")
    ],
    output: Annotated[str, typer.Option(metavar="DIR", help="Folder for the three files.")],
    seed: Annotated[int, typer.Option(metavar="S", help="Seed of the events.")] = 1,
    rate: Annotated[
        int, typer.Option(min=1, metavar="R", help="Events per second of event time.")
    ] = 10_000,
    shape: Annotated[
        str, typer.Option(help="Shape of the rate: flat, burst, sine or step.")
    ] = "flat",
    format: Annotated[str, typer.Option(help="Format of the files: ndjson or parquet.")] = "ndjson",
    hot: Annotated[
        str, typer.Option(help="Hot keys: canonical (they change) or zipf (they stay).")
    ] = "canonical",
    disorder: Annotated[
        int, typer.Option(min=0, metavar="MS", help="Longest delay of an event, in milliseconds.")
    ] = 0,
) -> None:
    """Write person, auction and bid files. The same options give the same files."""
    from typing import Any, cast

    from rich.console import Console

    from penstock.console.terminal import progress_messages
    from penstock_bench.workloads.nexmark.config import NexmarkConfig
    from penstock_bench.workloads.nexmark.generator import generate

    config = NexmarkConfig(
        events=events,
        seed=seed,
        rate=rate,
        shape=cast(Any, shape),
        hot=cast(Any, hot),
        disorder_ms=disorder,
    )
    console = Console(highlight=False, soft_wrap=True)
    with progress_messages(console) as tell:
        say = _seldom(console.is_terminal, tell, "Generating", "generated")
        counts = generate(config, output, cast(Any, format), lambda done: say(done, events))
    written = ", ".join(f"{count:,} {stream}" for stream, count in counts.items())
    console.print(f"{output}: {written}")


def _run(
    name: str, folder: str, output: str, hosts: int, batch_rows: int, master: str | None
) -> None:
    import time

    from rich.console import Console

    from penstock.console.terminal import cleaned_up, progress_messages
    from penstock_bench.workloads.nexmark.run import run

    console, began = Console(highlight=False, soft_wrap=True), time.monotonic()
    with cleaned_up(console) as resources:
        tell = resources.enter_context(progress_messages(console))
        done = _seldom(console.is_terminal, tell, name, "done")
        rows = run(
            name,
            folder,
            output,
            opened=resources,
            hosts=hosts,
            batch_rows=batch_rows,
            master=master,
            tell=tell,
            done=done,
        )
    console.print(f"{output}: {rows:,} rows, after {time.monotonic() - began:,.1f} s")


def _seldom(
    terminal: bool, tell: Callable[[str], None], task: str, verb: str
) -> Callable[[int, int], None]:
    """A function that shows how many events are done: at each call on a terminal, else every few seconds."""
    import time

    began = last = 0.0

    def say(events: int, of: int) -> None:
        nonlocal began, last
        now = time.monotonic()
        began = began or now
        if terminal or now - last >= _LINE_S:
            last = now
            rate = events / max(now - began, 0.001)
            tell(f"{task}: {events:,} of {of:,} events {verb}, {rate:,.0f} per second")

    return say


def _query(name: str) -> Callable[..., None]:
    """The command of one query."""

    def query(
        folder: Annotated[
            str,
            typer.Option("--input", metavar="DIR", help="Folder of person, auction and bid files."),
        ],
        output: Annotated[
            str,
            typer.Option(metavar="FILE", help="Output file: .parquet or .ndjson."),
        ],
        hosts: Annotated[
            int, typer.Option(min=1, max=64, metavar="N", help="Number of hosts per keyed step.")
        ] = 2,
        batch_rows: Annotated[
            int, typer.Option(min=1, metavar="N", help="Events per epoch.")
        ] = 100_000,
        master: Annotated[
            str | None, typer.Option(metavar="M", help="URL of Spark's master; local by default.")
        ] = None,
    ) -> None:
        _run(name, folder, output, hosts, batch_rows, master)

    return query


for _name, _title in TITLES.items():
    nexmark.command(_name, help=_title)(_query(_name))

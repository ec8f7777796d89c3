"""The `penstock` command: its verbs, their options, and how they end.

A verb imports the code that it runs inside its function, so that `penstock --help` stays quick. `main`
chooses the exit code:

    0    success
    1    a check failed, or there is no such entry
    2    a `PenstockError`, shown without a traceback, or invalid options
    3    `demo` only: the answer is right, but the SLA was missed or no killed host recovered
    130  Ctrl-C
    143  SIGTERM, after cleaning up

Any other error is a bug in Penstock, and shows its traceback.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from penstock import __version__
from penstock.cli.cluster import cluster
from penstock.cli.ctl import ctl
from penstock.cli.functions import functions
from penstock.cli.options import AsJson, CheckpointFolder, StepName, show
from penstock.cli.report import report
from penstock.cli.simulate import simulate
from penstock.errors import PenstockError
from penstock.extensions import extension

app = typer.Typer(
    name="penstock",
    help="Stateful streaming on Spark with a latency SLA.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 120},
    rich_markup_mode=None,  # plain help: loading rich takes longer than all the rest of `--help`
)
state = typer.Typer(
    help="Look into a checkpoint: no Spark, no running query.", no_args_is_help=True
)
app.add_typer(state, name="state")
app.add_typer(ctl, name="ctl")
app.add_typer(cluster, name="cluster")
app.add_typer(functions, name="functions")
app.command()(simulate)
app.command()(report)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit the process. `arguments` are those of the command line by default."""
    # SIGTERM runs the same clean-up as Ctrl-C.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        app(arguments, prog_name="penstock")
    except PenstockError as error:
        _show(error)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)
    sys.exit(0)


def _show(error: PenstockError) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, soft_wrap=True)
    console.print(Text.assemble((f"{type(error).__name__}: ", "bold red"), (error.message, "red")))
    if error.hint:
        console.print(Text(f"What to do: {error.hint}"))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Stateful streaming on Spark with a latency SLA."""


@app.command()
def doctor(
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Also check this checkpoint folder: a path or a URI."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check that this machine can run Penstock; exit code 1 if it cannot."""
    from penstock.console.doctor import examine
    from penstock.console.doctor import report as drawn

    findings = examine(checkpoint)
    if as_json:
        from penstock import codec

        facts = [codec.to_plain(finding) | {"status": finding.status} for finding in findings]
        typer.echo(codec.text(facts, indent=2))
    else:
        from rich.console import Console

        Console().print(drawn(findings))
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


@app.command()
def dashboard(
    checkpoint: CheckpointFolder,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to serve it on. 0: a free one.")
    ] = 0,
    opens: Annotated[
        bool | None,
        typer.Option(
            "--open/--no-open", help="Open it in a browser. Default: if this is a terminal."
        ),
    ] = None,
    start: Annotated[
        float | None,
        typer.Option(
            metavar="MS", help="Show the start of the flow at this time, in ms since 1970."
        ),
    ] = None,
) -> None:
    """Show a query in a web page: as it runs, or from its recording. Ctrl-C ends it."""
    from penstock.console.dashboard import serve

    serve(checkpoint, port, sys.stdout.isatty() if opens is None else opens, start, typer.echo)


def _add_extension(name: str, about: str, logs: bool = True) -> None:
    """Add a verb of another package. It is always listed, and imported when it is called. `logs`: whether log
    lines go to stderr."""

    @app.command(
        name,
        help=about,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def run(context: typer.Context) -> None:
        from penstock.logs import log_to_stderr

        if logs:
            log_to_stderr()
        extension("penstock.commands", name)(context.args, prog_name=f"penstock {name}")


_add_extension(
    "demo", "See an SLA kept through a hotspot, a burst and a killed host, in 90 s.", logs=False
)
_add_extension("bench", "Run a benchmark and show its figures beside their goals.")
_add_extension("nexmark", "Generate the events of the NEXMark benchmark, and run its queries.")


@state.command("ls")
def state_ls(checkpoint: CheckpointFolder, as_json: AsJson = False) -> None:
    """Show a checkpoint's steps, hosts and files; exit code 1 if a file is damaged."""
    from penstock.console.checkpoint import view
    from penstock.console.checkpoint.checkpoint import Checkpoint

    overview = Checkpoint(checkpoint).overview()
    show(view.as_json(overview) if as_json else view.draw_overview(overview))
    if any(step.damaged for step in overview.steps):
        raise typer.Exit(1)


@state.command("show")
def state_show(
    checkpoint: CheckpointFolder,
    step: StepName = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Show this key only; with several key columns, 1,2 or a --key for each.",
        ),
    ] = None,
    epoch: Annotated[int | None, typer.Option(help="Version to show. Default: the newest.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of entries.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show a step's entries, or one key and the files that have it; exit code 1 if the key is missing."""
    from penstock.console.checkpoint import view
    from penstock.console.checkpoint.checkpoint import Checkpoint

    opened = Checkpoint(checkpoint)
    step = opened.chosen(step)
    if not key:
        entries = opened.entries(step, epoch, limit)
        show(view.as_json(entries) if as_json else view.draw_entries(entries))
        return
    history = opened.history(step, key, epoch)
    if history is None:
        typer.echo(f"{step} has no entry for the key {','.join(key)}", err=True)
        raise typer.Exit(1)
    show(view.as_json(history) if as_json else view.draw_history(history))


@state.command("slots")
def state_slots(
    checkpoint: CheckpointFolder,
    step: Annotated[
        str | None, typer.Option(metavar="STEP", help="Name of the step. Default: all steps.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the host of each slot, since when and why, and its entries in the store."""
    from rich.console import Group

    from penstock.console.checkpoint import view
    from penstock.console.checkpoint.checkpoint import Checkpoint

    opened = Checkpoint(checkpoint)
    steps = opened.steps if step is None else [opened.chosen(step)]
    slots = [opened.slots(name) for name in steps]
    show(view.as_json(slots) if as_json else Group(*map(view.draw_slots, slots)))


@state.command("letters")
def state_letters(checkpoint: CheckpointFolder) -> None:
    """Print the dead letters, rows that could not be processed, as lines of JSON, oldest first."""
    from penstock.console.checkpoint.checkpoint import Checkpoint

    for line in Checkpoint(checkpoint).letters():
        typer.echo(line)

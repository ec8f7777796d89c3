"""The `penstock` command: its verbs, their options, and how they end.

A verb here holds its options and help, and imports what it runs inside its function, so that
`penstock --help` stays quick. `main` alone decides how the command ends:

    0    done
    1    done, and the answer is no (a check that failed)
    2    a `PenstockError`, shown without a traceback, or options that make no sense
    130  Ctrl-C
    143  told to end (SIGTERM), after cleaning up

Any other error is a defect of Penstock, and shows its traceback.
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
from penstock.cli.simulate import simulate
from penstock.errors import PenstockError
from penstock.extensions import extension

app = typer.Typer(
    name="penstock",
    help="Stateful streaming on Spark with a latency SLA.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
state = typer.Typer(
    help="Look into a checkpoint: no Spark, no running query.", no_args_is_help=True
)
app.add_typer(state, name="state")
app.add_typer(ctl, name="ctl")
app.add_typer(cluster, name="cluster")
app.add_typer(functions, name="functions")
app.command()(simulate)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and leave the process. Without `arguments`, those of the command line."""
    # Being told to end runs the same clean-up as Ctrl-C does.
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
        typer.Option(metavar="DIR", help="A checkpoint folder to try too: a path or a URI."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check that this machine can run Penstock; exit code 1 if it cannot."""
    from penstock.console.doctor import examine, report

    findings = examine(checkpoint)
    if as_json:
        from penstock import codec

        facts = [codec.to_plain(finding) | {"status": finding.status} for finding in findings]
        typer.echo(codec.text(facts, indent=2))
    else:
        from rich.console import Console

        Console().print(report(findings))
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


@app.command()
def demo(
    seconds: Annotated[int, typer.Option(min=1, help="How long rows arrive.")] = 30,
    rate: Annotated[int, typer.Option(min=1, help="Rows that arrive each second.")] = 20_000,
    keys: Annotated[int, typer.Option(min=1, help="Distinct keys.")] = 10_000,
    hosts: Annotated[int, typer.Option(min=1, max=64, help="Hosts to share them.")] = 2,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Live mode: rows come in bursts (a quarter of the rate, and all of it for 2 s of every "
            "10 s), results leave within milliseconds, and there are 1 to so many hosts, as the load asks.",
        ),
    ] = False,
) -> None:
    """Run a keyed aggregation on generated rows and check its sums; exit code 1 if one is wrong."""
    from penstock.console.demo.run import DemoLoad, run
    from penstock.logs import log_to_stderr

    log_to_stderr()
    if not run(DemoLoad(seconds, rate, keys, hosts, live)):
        raise typer.Exit(1)


def _add_extension(name: str, about: str) -> None:
    """Add a verb that another package has: listed always, looked for when it is called."""

    @app.command(
        name,
        help=about,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def run(context: typer.Context) -> None:
        from penstock.logs import log_to_stderr

        log_to_stderr()
        extension("penstock.commands", name)(context.args, prog_name=f"penstock {name}")


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
        typer.Option(metavar="KEY", help="Just this key; a comma or a --key for each column."),
    ] = None,
    epoch: Annotated[int | None, typer.Option(help="As of this epoch; the newest if none.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many entries.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show entries of a step, or one key and its files; exit code 1 if there is no such key."""
    from penstock.console.checkpoint import view
    from penstock.console.checkpoint.checkpoint import Checkpoint

    found = Checkpoint(checkpoint)
    step = found.chosen(step)
    if not key:
        entries = found.entries(step, epoch, limit)
        show(view.as_json(entries) if as_json else view.draw_entries(entries))
        return
    history = found.history(step, key, epoch)
    if history is None:
        typer.echo(f"{step} has no entry for the key {','.join(key)}", err=True)
        raise typer.Exit(1)
    show(view.as_json(history) if as_json else view.draw_history(history))


@state.command("slots")
def state_slots(
    checkpoint: CheckpointFolder,
    step: Annotated[
        str | None, typer.Option(metavar="STEP", help="Which step; all of them if none.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show where slots are, since when and why, and what the store has of them."""
    from rich.console import Group

    from penstock.console.checkpoint import view
    from penstock.console.checkpoint.checkpoint import Checkpoint

    found = Checkpoint(checkpoint)
    steps = found.steps if step is None else [found.chosen(step)]
    slots = [found.slots(one) for one in steps]
    show(view.as_json(slots) if as_json else Group(*map(view.draw_slots, slots)))


@state.command("letters")
def state_letters(checkpoint: CheckpointFolder) -> None:
    """Show the rows that were set aside (dead letters), as lines of JSON, oldest first."""
    from penstock.console.checkpoint.checkpoint import Checkpoint

    for line in Checkpoint(checkpoint).letters():
        typer.echo(line)

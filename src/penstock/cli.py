"""The `penstock` command: its verbs, their options, and how they end.

A verb here holds its options and help, and imports what it runs inside its function, so that
`penstock --help` stays quick. `main` alone decides how the command ends:

    0    done
    1    done, and the answer is no (a check that failed)
    2    a `PenstockError`, shown without a traceback, or options that make no sense
    130  Ctrl-C

Any other error is a defect of Penstock, and shows its traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from penstock.errors import PenstockError

app = typer.Typer(
    name="penstock",
    help="Stateful streaming on Spark with a latency SLA.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and leave the process. Without `arguments`, those of the command line."""
    try:
        app(arguments, prog_name="penstock")
    except PenstockError as error:
        _show(error)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
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
        from importlib.metadata import version

        typer.echo(f"penstock {version('penstock')}")
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
    from penstock.doctor import examine, report

    findings = examine(checkpoint)
    if as_json:
        import json
        from dataclasses import asdict

        typer.echo(json.dumps([asdict(f) | {"status": f.status} for f in findings], indent=2))
    else:
        from rich.console import Console

        Console().print(report(findings))
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)

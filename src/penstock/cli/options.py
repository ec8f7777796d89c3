"""Options that several verbs share, and functions that print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

CheckpointFolder = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="The folder given to start(checkpoint=...).")
]
StepName = Annotated[
    str | None, typer.Option(metavar="STEP", help="Name of the step. Needed if there are several.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def show(output: RenderableType) -> None:
    """Print text as it is, and anything else with rich."""
    if isinstance(output, str):
        typer.echo(output)
    else:
        wide_console().print(output)


def wide_console() -> Console:
    """A console as wide as the terminal, or 240 columns wide if the output is not a terminal."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=240)

"""Options that several verbs of the `penstock` command have, and how verbs print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

CheckpointFolder = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="The folder given to start(checkpoint=...).")
]
StepName = Annotated[
    str | None, typer.Option(metavar="STEP", help="Which step; the only one if there is one.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def show(what: RenderableType) -> None:
    """Print it; text as it is."""
    if isinstance(what, str):
        typer.echo(what)
    else:
        wide_console().print(what)


def wide_console() -> Console:
    """Print as wide as the terminal, or with room for everything where there is none."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=240)

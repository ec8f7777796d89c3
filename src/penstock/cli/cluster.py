"""`penstock cluster`: a standalone Spark cluster on this machine, to try flows on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import AsJson

if TYPE_CHECKING:
    from penstock.console.cluster.background import Running

cluster = typer.Typer(
    help="A standalone Spark cluster on this machine, to try flows on.", no_args_is_help=True
)
Folder = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Folder of its logs and state. Default: a folder of the user's."
    ),
]


@cluster.command("up")
def cluster_up(
    workers: Annotated[int, typer.Option(min=1, help="Number of workers.")] = 2,
    cores: Annotated[int, typer.Option(min=1, help="Task slots of each worker.")] = 4,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory of each worker for executors.")
    ] = "1g",
    address: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address that it listens on.")
    ] = "127.0.0.1",
    folder: Folder = None,
) -> None:
    """Start a master and workers in the background, and print how to use them."""
    from rich.console import Console

    from penstock.console.cluster import background
    from penstock.console.cluster.cluster import Shape
    from penstock.console.terminal import progress_messages

    place = folder or background.user_folder()
    with progress_messages(Console(stderr=True)) as tell:
        tell(f"Starting a master and {workers} {_workers(workers)}")
        running = background.up(place.absolute(), Shape(workers, cores, memory, address))
    typer.echo(f"{running.master}: {_shape(running)}. Logs are in {place / 'logs'}.")
    typer.echo(f'Start a flow on it with  ps.session(master="{running.master}")')
    typer.echo("and end it with          penstock cluster down" + _named(folder))


@cluster.command("down")
def cluster_down(folder: Folder = None) -> None:
    """End the cluster, and the executors of all applications on it."""
    from penstock.console.cluster import background

    place = folder or background.user_folder()
    ended = background.down(place.absolute())
    typer.echo("No cluster runs." if ended is None else f"{ended.master} has ended.")


@cluster.command("status")
def cluster_status(folder: Folder = None, as_json: AsJson = False) -> None:
    """Show whether a cluster runs, and its master; exit code 1 if none runs, or a part of it has ended."""
    from penstock import codec
    from penstock.console.cluster import background

    running = background.running((folder or background.user_folder()).absolute())
    missing = [] if running is None else running.missing()
    if as_json:
        facts = None if running is None else codec.to_plain(running) | {"missing": missing}
        typer.echo(codec.text(facts, indent=2))
    elif running is None:
        typer.echo("No cluster runs. Start one with `penstock cluster up`.")
    else:
        typer.echo(f"{running.master}: {_shape(running)}.")
        for name in missing:
            typer.echo(f"{name} has ended: end the rest with `penstock cluster down`.")
    if running is None or missing:
        raise typer.Exit(1)


def _shape(running: Running) -> str:
    shape = running.shape
    return (
        f"{shape.workers} {_workers(shape.workers)} with {shape.cores} task slots and "
        f"{shape.memory} of memory each"
    )


def _workers(count: int) -> str:
    return "worker" if count == 1 else "workers"


def _named(folder: Path | None) -> str:
    return "" if folder is None else f" --folder {folder}"

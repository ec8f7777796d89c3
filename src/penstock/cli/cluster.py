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
    typer.Option(metavar="DIR", help="Where its logs and state are; one of the user's if none."),
]


@cluster.command("up")
def cluster_up(
    workers: Annotated[int, typer.Option(min=1, help="How many workers.")] = 2,
    cores: Annotated[int, typer.Option(min=1, help="Task slots of each worker.")] = 4,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="What each worker may give to executors.")
    ] = "1g",
    address: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where it listens; loopback, unless told.")
    ] = "127.0.0.1",
    folder: Folder = None,
) -> None:
    """Start a master and workers in the background, and tell how to use them."""
    from rich.console import Console

    from penstock.console.cluster import background
    from penstock.console.cluster.cluster import Shape
    from penstock.console.terminal import telling

    place = folder or background.user_folder()
    with telling(Console(stderr=True)) as tell:
        tell(f"Starting a master and {workers} {_workers(workers)}")
        found = background.up(place.absolute(), Shape(workers, cores, memory, address))
    typer.echo(f"{found.master}: {_shape(found)}. Logs are in {place / 'logs'}.")
    typer.echo(f'Start a flow on it with  ps.session(master="{found.master}")')
    typer.echo("and end it with          penstock cluster down" + _named(folder))


@cluster.command("down")
def cluster_down(folder: Folder = None) -> None:
    """End the cluster, and the executors of whatever runs on it."""
    from penstock.console.cluster import background

    place = folder or background.user_folder()
    ended = background.down(place.absolute())
    typer.echo("No cluster runs." if ended is None else f"{ended.master} has ended.")


@cluster.command("status")
def cluster_status(folder: Folder = None, as_json: AsJson = False) -> None:
    """Tell whether a cluster runs, and where; exit code 1 if none does, or not all of it."""
    from penstock import codec
    from penstock.console.cluster import background

    found = background.running((folder or background.user_folder()).absolute())
    missing = [] if found is None else found.missing()
    if as_json:
        plain = None if found is None else codec.to_plain(found) | {"missing": missing}
        typer.echo(codec.text(plain, indent=2))
    elif found is None:
        typer.echo("No cluster runs. Start one with `penstock cluster up`.")
    else:
        typer.echo(f"{found.master}: {_shape(found)}.")
        for name in missing:
            typer.echo(f"{name} runs no more: end the rest with `penstock cluster down`.")
    if found is None or missing:
        raise typer.Exit(1)


def _shape(found: Running) -> str:
    shape = found.shape
    return (
        f"{shape.workers} {_workers(shape.workers)} with {shape.cores} task slots and "
        f"{shape.memory} of memory each"
    )


def _workers(count: int) -> str:
    return "worker" if count == 1 else "workers"


def _named(folder: Path | None) -> str:
    return "" if folder is None else f" --folder {folder}"

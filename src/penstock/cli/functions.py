"""`penstock functions`: archives and images for functions (burst workers)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

functions = typer.Typer(no_args_is_help=True)


@functions.callback()
def about() -> None:
    """Functions (burst workers), which carry bursts."""


@functions.command("package")
def package_flow(
    flow: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME", help="A flow, or a function without arguments that returns one."
        ),
    ],
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The archive to write.")] = Path(
        "functions.zip"
    ),
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--module",
            metavar="MODULE",
            help="Another module to include. May be repeated.",
        ),
    ] = None,
    vendor: Annotated[
        bool, typer.Option("--vendor", help="Include the packages that a burst worker needs.")
    ] = False,
) -> None:
    """Write the archive, or the content of an image, of an AWS Lambda function for a flow."""
    import os
    import sys

    from penstock.offload.backends.aws.package import flow_named, package

    sys.path.insert(0, os.getcwd())
    plan = flow_named(flow)
    packed = package(plan, to, [flow.partition(":")[0], *(modules or [])], vendor)
    megabytes = packed.unpacked_bytes / 2**20
    typer.echo(f"{packed.path}: {megabytes:.1f} MB unpacked, handler penstock_handler.handler")
    if not packed.vendored:
        typer.echo(f"A burst worker also needs {', '.join(packed.requirements)}.")
    if not packed.fits:
        typer.echo("To make an image of it, unzip it into an empty folder, then run docker build.")

"""`penstock functions`: archives and images for functions (burst workers)."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

functions = typer.Typer(no_args_is_help=True)


class Platform(enum.Enum):
    """Where burst workers run."""

    on_lambda = "lambda"
    over_http = "http"


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
    platform: Annotated[
        Platform,
        typer.Option(
            "--for", help="Where it will run: AWS Lambda, or any platform for containers."
        ),
    ] = Platform.on_lambda,
) -> None:
    """Write the archive, or the content of an image, of functions for a flow."""
    import os
    import sys

    from penstock.offload.backends.package import flow_named, package

    sys.path.insert(0, os.getcwd())
    plan = flow_named(flow)
    included = [flow.partition(":")[0], *(modules or [])]
    packed = package(plan, to, included, vendor, platform.value)
    megabytes = packed.unpacked_bytes / 2**20
    entry = ", handler penstock_handler.handler" if platform is Platform.on_lambda else ""
    typer.echo(f"{packed.path}: {megabytes:.1f} MB unpacked{entry}")
    if not packed.vendored:
        typer.echo(f"A burst worker also needs {', '.join(packed.requirements)}.")
    if platform is Platform.over_http or not packed.fits:
        typer.echo("To make an image of it, unzip it into an empty folder, then run docker build.")
